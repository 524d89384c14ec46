"""Rewards of a batch: every reward on every sample, with failures counted instead of graded."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import SupportsFloat

from grpo.rewards.protocol import Reward, WeightedReward
from grpo.types import Rollouts, Sample, Scored


class RewardError(RuntimeError):
    """Too many calls of rewards failed; shows the first failure and is raised from it."""


def score(
    rollouts: Rollouts,
    rewards: Sequence[WeightedReward],
    max_error_fraction: float = 0.1,
    over_ranks: Callable[[float], float] = float,
) -> Scored:
    """Judge N sequences, in order, by each reward in its turn.

    A call that raises, or returns something else than a finite number, is an error; one that
    returns None abstains. Either way that component is None and the sample has no total: a
    failure is not a 0, which would push down a completion that nobody judged. KeyboardInterrupt
    and its like pass through.

    Args:
        rollouts: N sequences.
        rewards: at least one, of distinct names, at most one of them the success measure.
        max_error_fraction: the largest share of the N * len(rewards) calls that may be errors.
        over_ranks: sums a number over all ranks, where each has sequences of its own; the share is
            then one of all calls together.

    Returns:
        The weighted sums, each component before weighting, success (the marked component is at
        least 1.0) and the number of errors.

    Raises:
        RewardError: more errors than that; raised from the first of them, at once where they are
            too many on one rank.
        ValueError: no reward, a name given twice, or two success measures.
    """
    _check(rewards)
    total = int(over_ranks(len(rollouts) * len(rewards)))
    allowed = max_error_fraction * total
    components: dict[str, list[float | None]] = {r.name: [] for r in rewards}
    errors, calls, first, told = 0, 0, None, ""
    for sample in rollouts.samples():
        for weighted in rewards:
            calls += 1
            value: float | None = None
            try:
                value = _judge(weighted.reward, sample)
            except Exception as error:
                errors += 1
                if first is None:
                    first = error
                    told = f"reward {weighted.name!r} on task {sample.task.id!r}: {_in_words(error)}"
                if errors > allowed:
                    raise RewardError(_too_many(errors, calls, max_error_fraction, told)) from first
            components[weighted.name].append(value)
    all_errors = int(over_ranks(errors))
    if all_errors > allowed:
        raise RewardError(_too_many(all_errors, total, max_error_fraction, told)) from first
    marked = next((r.name for r in rewards if r.success), None)
    judged = components[marked] if marked is not None else [None] * len(rollouts)
    return Scored(
        rollouts=rollouts,
        rewards=_totals(components, rewards),
        components=components,
        success=[None if value is None else value >= 1.0 for value in judged],
        errors=errors,
    )


def _too_many(errors: int, calls: int, fraction: float, told: str) -> str:
    first = f"the first was {told}" if told else "none of them on this rank"
    return f"{errors} of {calls} reward calls failed (max_reward_error_fraction is {fraction:g}); {first}"


def _judge(reward: Reward, sample: Sample) -> float | None:
    value = reward(sample)
    if value is None:
        return None
    # float() would also read a string; a reward that returns one is broken.
    if not isinstance(value, SupportsFloat):
        raise TypeError(f"returned {value!r}, expected a number or None")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"returned {number}, expected a finite number or None")
    return number


def _totals(
    components: dict[str, list[float | None]], rewards: Sequence[WeightedReward]
) -> list[float | None]:
    weights = [r.weight for r in rewards]
    rows = zip(*(components[r.name] for r in rewards), strict=True)
    return [None if None in row else sum(w * v for w, v in zip(weights, row, strict=True)) for row in rows]


def _check(rewards: Sequence[WeightedReward]) -> None:
    names = [r.name for r in rewards]
    if not names:
        raise ValueError("score: no reward given")
    if len(set(names)) != len(names):
        raise ValueError(f"score: rewards need distinct names, got {names}")
    marked = [r.name for r in rewards if r.success]
    if len(marked) > 1:
        raise ValueError(f"score: one reward at most is the success measure, got {marked}")


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
