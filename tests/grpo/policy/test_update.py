"""From gradients to weights, and when not to."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from grpo.policy import apply_gradients


def parameter(gradient: list[float] | None) -> tuple[nn.Parameter, torch.optim.Optimizer]:
    weight = nn.Parameter(torch.ones(2))
    weight.grad = None if gradient is None else torch.tensor(gradient)
    return weight, torch.optim.SGD([weight], lr=1.0)


def test_gradients_are_clipped_applied_and_cleared() -> None:
    weight, optimizer = parameter([3.0, 4.0])
    norm, applied = apply_gradients(optimizer, max_norm=1.0)
    assert (norm, applied) == (5.0, True)
    assert weight.tolist() == pytest.approx([1 - 0.6, 1 - 0.8], abs=1e-5)
    assert weight.grad is None


def test_without_a_limit_nothing_is_clipped() -> None:
    weight, optimizer = parameter([3.0, 4.0])
    assert apply_gradients(optimizer, max_norm=None) == (5.0, True)
    assert weight.tolist() == [-2.0, -3.0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_skips_the_update(bad: float) -> None:
    weight, optimizer = parameter([bad, 1.0])
    norm, applied = apply_gradients(optimizer, max_norm=1.0)
    assert not math.isfinite(norm) and not applied
    assert weight.tolist() == [1.0, 1.0] and weight.grad is None


def test_without_gradients_moments_and_decay_move_nothing() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([weight], lr=0.1, weight_decay=0.5)
    weight.grad = torch.ones(2)
    apply_gradients(optimizer, max_norm=None)
    moved = weight.tolist()
    assert apply_gradients(optimizer, max_norm=None) == (0.0, False)
    assert weight.tolist() == moved
