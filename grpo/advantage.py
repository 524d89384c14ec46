"""Advantages: how much better a sample did than the other samples of its prompt.

Pure functions of rewards and group ids. A reward of NaN means "not judged": it enters no
statistic and its advantage is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Baseline = Literal["mean", "leave_one_out"]
Scale = Literal["std", "none"]


def group_advantages(
    rewards: Tensor,
    group_ids: Tensor,
    *,
    baseline: Baseline = "mean",
    scale: Scale = "std",
    ddof: int = 1,
    eps: float = 1e-4,
) -> Tensor:
    """Advantages within groups; groups may differ in size and lie in any order.

    ``mean`` and ``std`` give ``(r - mean) / (std + eps)`` (DeepSeekMath, arXiv 2402.03300,
    section 4.1.2); ``none`` leaves out the division (Dr. GRPO, arXiv 2503.20783);
    ``leave_one_out`` takes the mean of the *other* samples as baseline (RLOO, arXiv 2402.14740).
    A group whose rewards are all equal gets exactly 0, in float32 too: its spread is taken
    from largest and smallest reward, not from a rounded standard deviation.

    Args:
        rewards: [N] floats, NaN where a sample was not judged.
        group_ids: [N] ints.
        baseline: what is subtracted.
        scale: what is divided by.
        ddof: 1 divides the squared deviations by n - 1 (torch's default), 0 by n.
        eps: added to the standard deviation.

    Returns:
        [N] float32, finite everywhere.
    """
    if rewards.shape != group_ids.shape or rewards.ndim != 1:
        raise ValueError(
            f"rewards {list(rewards.shape)} and group_ids {list(group_ids.shape)} must both be [N]"
        )
    judged = torch.isfinite(rewards)
    groups, index = torch.unique(group_ids, return_inverse=True)

    def per_group(values: Tensor) -> Tensor:
        total = torch.zeros(len(groups), dtype=torch.float64).index_add(0, index, values)
        return total[index]

    # float64: the sums of a group should not depend on the order of its samples
    value = torch.where(judged, rewards, 0).double()
    count = per_group(judged.double())
    centred = value - per_group(value) / count.clamp(min=1)
    advantages = centred * count / (count - 1).clamp(min=1) if baseline == "leave_one_out" else centred
    if scale == "std":
        variance = per_group(torch.where(judged, centred, 0).square()) / (count - ddof).clamp(min=1)
        # eps = 0 is allowed; flat groups, the only ones to divide 0 by 0, are set to 0 below
        advantages = advantages / (variance.sqrt() + eps)

    has_spread = _has_spread(rewards, judged, index, len(groups))
    return torch.where(judged & has_spread, advantages, 0).float()


def _has_spread(rewards: Tensor, judged: Tensor, index: Tensor, num_groups: int) -> Tensor:
    """[N] bool: the sample's group holds two different judged rewards."""
    low = torch.full((num_groups,), torch.inf, dtype=rewards.dtype)
    low = low.scatter_reduce(0, index, torch.where(judged, rewards, torch.inf), "amin")
    high = torch.full((num_groups,), -torch.inf, dtype=rewards.dtype)
    high = high.scatter_reduce(0, index, torch.where(judged, rewards, -torch.inf), "amax")
    return (high > low)[index]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAdvantage:
    """:func:`group_advantages` as a component, from lists to a tensor.

    Args:
        baseline: ``mean`` or ``leave_one_out``.
        scale: ``std``, or ``none`` to centre only.
        ddof: 1 (sample standard deviation) or 0.
        eps: added to the standard deviation.
    """

    baseline: Baseline = "mean"
    scale: Scale = "std"
    ddof: int = 1
    eps: float = 1e-4

    def __post_init__(self) -> None:
        if self.ddof not in (0, 1):
            raise ValueError(f"ddof must be 0 or 1, got {self.ddof}")
        if self.eps < 0:
            raise ValueError(f"eps must be 0 or more, got {self.eps}")

    @classmethod
    def check(cls, **settings: object) -> None:
        """Find impossible settings before a model is loaded, by building the component."""
        cls(**settings)

    def __call__(self, rewards: Sequence[float | None], group_ids: Sequence[int]) -> Tensor:
        """[N] float32 advantages; None (not judged) gets 0."""
        values = torch.tensor([float("nan") if r is None else r for r in rewards], dtype=torch.float64)
        return group_advantages(
            values,
            torch.tensor(group_ids),
            baseline=self.baseline,
            scale=self.scale,
            ddof=self.ddof,
            eps=self.eps,
        )
