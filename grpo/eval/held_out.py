"""How well the policy does on tasks that training never sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from grpo.generation import Engine
from grpo.metrics import rollout_metrics
from grpo.rewards import WeightedReward, score
from grpo.types import PromptBatch, Rollouts, SamplingParams


class PromptSource(Protocol):
    """A loader whose batches cover a fixed set of tasks once per epoch."""

    batches_per_epoch: int

    def next_batch(self) -> PromptBatch: ...


def evaluate(
    engine: Engine,
    prompts: PromptSource,
    rewards: Sequence[WeightedReward],
    sampling: SamplingParams,
    max_error_fraction: float = 0.1,
) -> dict[str, float | int | None]:
    """One greedy completion per task, scored by the training rewards, as ``eval/...`` metrics.

    Greedy sampling draws no random number, so training goes on as if this had not happened.

    Args:
        engine: samples from the current policy.
        prompts: the held-out tasks; one epoch of it is taken.
        rewards: as in training.
        sampling: its temperature is set to 0.
        max_error_fraction: see :func:`grpo.rewards.score`.
    """
    greedy = SamplingParams(
        max_generated_tokens=sampling.max_generated_tokens, temperature=0.0, stop_ids=sampling.stop_ids
    )
    batches = [engine.generate(prompts.next_batch(), greedy) for _ in range(prompts.batches_per_epoch)]
    scored = score(_joined(batches), rewards, max_error_fraction)
    metrics = rollout_metrics(scored, prefix="eval/")
    del metrics["eval/informative_fraction"]  # one sample per task has no spread
    return {"eval/tasks": len(scored), **metrics}


def _joined(batches: Sequence[Rollouts]) -> Rollouts:
    """Several batches of rollouts as one."""
    lists = [name for name in Rollouts.__dataclass_fields__ if name != "policy_version"]
    columns = {name: [row for batch in batches for row in getattr(batch, name)] for name in lists}
    return Rollouts(policy_version=batches[0].policy_version, **columns)
