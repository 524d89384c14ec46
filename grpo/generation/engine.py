"""What a recipe asks of whatever samples for it."""

from __future__ import annotations

from typing import Any, Protocol

from torch import nn

from grpo.types import PromptBatch, Rollouts, SamplingParams


class Engine(Protocol):
    """Samples completions from the policy of the last :meth:`update_weights`."""

    def generate(self, prompts: PromptBatch, sampling: SamplingParams, num_samples: int = 1) -> Rollouts:
        """``num_samples`` completions of every prompt, those of one prompt side by side."""
        ...

    def update_weights(self, model: nn.Module) -> None:
        """Sample from these weights from now on, and stamp rollouts with a new version."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All that decides the next samples, apart from the weights."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as the engine that gave this state."""
        ...

    def reseed(self, number: int) -> None:
        """Begin a new stream of random numbers, which the engine's seed and ``number`` decide.

        For a rank that goes on from a checkpoint of another number of ranks.
        """
        ...
