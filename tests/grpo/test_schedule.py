"""Learning rates by update, and what is due when."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from grpo.schedule import constant_schedule, cosine_schedule, is_due, linear_schedule


def rates(builder, updates: int, **settings: float) -> list[float]:
    """The rate of each update, in order."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = builder(optimizer, **settings)
    seen = []
    for _ in range(updates):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return seen


def test_res_06_the_horizon_is_updates() -> None:
    # 2 epochs of 10 batches with 4 updates each: 80 updates, half the rate after 40
    seen = rates(linear_schedule, 80, num_training_steps=2 * 10 * 4)
    assert seen[0] == 1.0 and seen[40] == pytest.approx(0.5) and seen[79] == pytest.approx(1 / 80)


def test_res_07_the_rate_after_a_resume_is_that_of_the_next_update() -> None:
    def make() -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
        return optimizer, cosine_schedule(optimizer, num_training_steps=10)

    optimizer, schedule = make()
    for _ in range(5):
        optimizer.step()
        schedule.step()
    resumed_optimizer, resumed = make()
    resumed_optimizer.load_state_dict(optimizer.state_dict())
    resumed.load_state_dict(schedule.state_dict())
    assert resumed_optimizer.param_groups[0]["lr"] == pytest.approx(0.5)
    assert resumed.get_last_lr() == [pytest.approx(0.5)]


@pytest.mark.parametrize("builder", [constant_schedule, linear_schedule, cosine_schedule])
def test_res_18_the_first_update_is_not_lost(builder) -> None:
    seen = rates(builder, 6, num_training_steps=40, num_warmup_steps=4)
    assert seen[:4] == [0.25, 0.5, 0.75, 1.0]
    assert seen[4] == 1.0


@pytest.mark.parametrize("builder", [linear_schedule, cosine_schedule])
def test_decay_ends_at_the_smallest_ratio(builder) -> None:
    seen = rates(builder, 30, num_training_steps=20, num_warmup_steps=2, min_ratio=0.1)
    assert seen[25] == pytest.approx(0.1) and min(seen[2:]) >= 0.1 - 1e-9


def test_due_every_so_many_steps_and_at_the_last() -> None:
    assert [step for step in range(1, 8) if is_due(step, 3, last=7)] == [3, 6, 7]
    assert [step for step in range(1, 8) if is_due(step, None, last=7)] == [7]


@pytest.mark.parametrize("bad", [{"num_warmup_steps": -1}, {"min_ratio": 1.5}])
def test_impossible_settings_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        cosine_schedule.check(**bad)
