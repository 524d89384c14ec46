"""How well the policy does on tasks that training never sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from grpo.distributed import SOLO, Ranks
from grpo.generation import Engine
from grpo.metrics import rollout_metrics
from grpo.rewards import WeightedReward, score
from grpo.types import PromptBatch, SamplingParams, join_rollouts, join_scored


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
    ranks: Ranks = SOLO,
) -> dict[str, float | int | None]:
    """One greedy completion per task, scored by the training rewards, as ``eval/...`` metrics.

    Greedy sampling draws no random number, so training goes on as if this had not happened.

    Args:
        engine: samples from the current policy.
        prompts: the held-out tasks; one epoch of it is taken.
        rewards: as in training.
        sampling: its temperature is set to 0.
        max_error_fraction: see :func:`grpo.rewards.score`.
        ranks: each takes its share of the tasks; rank 0 returns the metrics of all, others none.
    """
    greedy = SamplingParams(
        max_generated_tokens=sampling.max_generated_tokens, temperature=0.0, stop_ids=sampling.stop_ids
    )
    batches = [
        engine.generate(ranks.share(prompts.next_batch()), greedy) for _ in range(prompts.batches_per_epoch)
    ]
    scored = ranks.gather(score(join_rollouts(batches), rewards, max_error_fraction, ranks.sum))
    if not ranks.is_main:
        return {}
    everything = join_scored(scored)
    metrics = rollout_metrics(everything, prefix="eval/")
    del metrics["eval/informative_fraction"]  # one sample per task has no spread
    return {"eval/tasks": len(everything), **metrics}
