"""The step from gradients to new weights."""

from __future__ import annotations

import math

import torch
from torch.optim import Optimizer

from grpo.models.shares import whole_of


def apply_gradients(optimizer: Optimizer, max_norm: float | None) -> tuple[float, bool]:
    """Clip, check and apply the accumulated gradients, then clear them.

    The update is skipped when a gradient is not finite, and when there is none at all (a batch
    of flat groups): moments and weight decay should not move a policy that learnt nothing.

    Returns:
        the gradient norm over all parameters and ranks before clipping, and whether the weights were updated.
    """
    with_gradient = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if not with_gradient:
        return 0.0, False
    max_norm = math.inf if max_norm is None else max_norm
    norm = whole_of(torch.nn.utils.clip_grad_norm_(with_gradient, max_norm)).item()
    applied = math.isfinite(norm)
    if applied:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm, applied
