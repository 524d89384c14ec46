"""What a reward is, and how a run weighs one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from grpo.config.errors import ConfigError
from grpo.types import Sample


@runtime_checkable
class Reward(Protocol):
    """Judges one completion. Any callable of this form is one; nothing to inherit from.

    Example:
        >>> def brevity(sample):
        ...     return 1.0 if sample.num_tokens < 100 else 0.0
    """

    def __call__(self, sample: Sample) -> float | None:
        """The sample's value, or None to abstain: "this cannot be judged", which is not a 0.

        What it raises is counted by :func:`grpo.rewards.score` and is no 0 either.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedReward:
    """One reward of a run.

    Attributes:
        name: its name in metrics and samples, unique in the run.
        reward: the judge.
        weight: its factor in the sample's total; 0 only logs it.
        success: whether it is the run's success measure (1.0 or more counts as solved).

    Raises:
        ConfigError: an empty name or a weight that is not a finite number.
    """

    name: str
    reward: Reward
    weight: float = 1.0
    success: bool = False

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("name: expected a reward's name, got an empty string")
        if not math.isfinite(self.weight):
            raise ConfigError(f"weight: expected a finite number, got {self.weight}")
