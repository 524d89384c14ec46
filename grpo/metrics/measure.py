"""What a step is worth knowing: numbers from rollouts, rewards and losses."""

from __future__ import annotations

import resource
import statistics
import sys
from collections import defaultdict

import torch
from torch import Tensor

from grpo.distributed import SOLO, Ranks
from grpo.metrics.clock import StageClock
from grpo.types import LossOutput, Scored, TrainBatch, join_scored, mean_of_present


def rollout_metrics(scored: Scored, prefix: str = "") -> dict[str, float | int | None]:
    """Rewards, success, spread and lengths of N scored rollouts; None where nothing was judged.

    ``informative_fraction`` is the share of groups whose judged rewards differ: the others have
    advantage 0 and teach nothing.
    """
    rollouts = scored.rollouts
    groups: dict[int, list[float]] = defaultdict(list)
    for group, reward in zip(rollouts.group_ids, scored.rewards, strict=True):
        groups[group] += [] if reward is None else [reward]
    present = [r for r in scored.rewards if r is not None]
    lengths = [len(ids) for ids in rollouts.completion_ids]
    metrics = {
        "reward/mean": mean_of_present(scored.rewards),
        "reward/std": statistics.stdev(present) if len(present) > 1 else None,
        **{f"reward/{name}": mean_of_present(values) for name, values in scored.components.items()},
        "success_rate": mean_of_present(scored.success),
        "informative_fraction": sum(min(g) < max(g) for g in groups.values() if g) / len(groups),
        "response_length/mean": statistics.fmean(lengths),
        "response_length/max": max(lengths),
        "truncated_fraction": rollouts.finish_reasons.count("length") / len(rollouts),
        "undefined_tokens": sum(rollouts.undefined_tokens),
        "reward_errors": scored.errors,
        "unscored": scored.rewards.count(None),
    }
    return {prefix + name: value for name, value in metrics.items()}


class LossTally:
    """Adds up the losses of a step's micro-batches and updates.

    Sums stay on the device until :meth:`metrics`, so that the loop does not wait for them.
    """

    def __init__(self) -> None:
        self._sums: dict[str, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        self._maxima: dict[str, list[Tensor]] = defaultdict(list)
        self._updates: list[tuple[float, float, bool]] = []

    def add(self, output: LossOutput, batch: TrainBatch, logprobs: Tensor, entropies: Tensor) -> None:
        """Count one micro-batch: the loss's own numbers, entropy, and the gap to the sampler."""
        for name, pair in output.sums.items():
            self._sums[name].append(pair)
        for name, value in output.maxima.items():
            self._maxima[name].append(value)
        tokens = batch.loss_mask.sum()
        gap = torch.where(batch.loss_mask, (logprobs.detach() - batch.sampler_logprobs).abs(), 0)
        self._sums["entropy"].append((entropies.sum(), tokens))
        if not self._updates:  # later updates of the same rollouts are meant to move away
            self._sums["sampler_gap/mean"].append((gap.sum(), tokens))
            self._maxima["sampler_gap/max"].append(gap.max())

    def end_update(self, lr: float, grad_norm: float, applied: bool) -> None:
        """An optimizer update ended, at this rate; it was skipped where ``applied`` is False."""
        self._updates.append((lr, grad_norm, applied))

    def metrics(self, ranks: Ranks = SOLO) -> dict[str, float | None]:
        """Means by name over all ranks.

        A loss is the sum over an update's micro-batches and ranks, averaged over updates.
        """
        means: dict[str, float | None] = dict.fromkeys(("loss", "policy_loss", "kl_loss"), 0.0)
        # What is a mean over trained tokens does not exist where none was trained.
        means |= dict.fromkeys(("clip_fraction", "approx_kl", "entropy", "sampler_gap/mean"))
        totals = ranks.sums([sum(float(v) for v, _ in pairs) for pairs in self._sums.values()])
        counts = ranks.sums([sum(float(n) for _, n in pairs) for pairs in self._sums.values()])
        for name, total, count in zip(self._sums, totals, counts, strict=True):
            if name in ("loss", "policy_loss", "kl_loss"):
                count = len(self._updates)
            means[name] = total / count if count else None
        largest = ranks.maxima([max(map(float, values)) for values in self._maxima.values()])
        maxima = dict(zip(self._maxima, largest, strict=True))
        lrs, norms, applied = zip(*self._updates, strict=True)
        return {
            **means,
            **dict.fromkeys(("ratio/max", "sampler_gap/max")),
            **maxima,
            "grad_norm": statistics.fmean(norms),
            "lr": lrs[-1],
            "skipped_updates": applied.count(False),
        }


def step_metrics(
    scored: Scored, tally: LossTally, clock: StageClock, device: torch.device, ranks: Ranks = SOLO
) -> dict[str, float | int | None]:
    """All numbers of a training step, as they stand in ``metrics.jsonl``.

    Args:
        scored, tally, clock, device: this rank's. Rewards, lengths and losses are those of all
            ranks together, times and memory those of the rank that has most.
        ranks: all of them; the numbers are whole on rank 0 only.
    """
    seconds = clock.seconds()
    memory, *slowest = ranks.maxima([peak_memory_gib(device), *seconds.values()])
    seconds = dict(zip(seconds, slowest, strict=True))
    everything = ranks.gather(scored)
    sampled = ranks.sum(sum(map(len, scored.rollouts.completion_ids)))
    return {
        **(rollout_metrics(join_scored(everything)) if everything else {}),
        **tally.metrics(ranks),
        **seconds,
        "tokens_per_second": sampled / seconds["time/total"],
        "peak_memory_gib": memory,
    }


def peak_memory_gib(device: torch.device) -> float:
    """Most memory held so far, in GiB: the device's own, or this process's on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes there, in KiB on Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
