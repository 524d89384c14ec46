"""Components for runs in which something goes wrong at a known moment."""

from __future__ import annotations

import os
import signal
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from grpo.loss import PolicyObjective
from grpo.schedule import constant_schedule
from grpo.types import LossOutput, Sample, TrainBatch


def constant(value: float = 0.5):
    """A reward that makes every group flat."""
    return lambda sample: value


class Alternates:
    """0, 1, 0, 1, ...: every group of an even size has a spread, whatever the model samples."""

    def __init__(self) -> None:
        self.last = 1.0

    def __call__(self, sample: Sample) -> float:
        self.last = 1.0 - self.last
        return self.last


class FailsOn:
    """A reward that raises on the samples of one task."""

    def __init__(self, task: str) -> None:
        self.task = task

    def __call__(self, sample: Sample) -> float:
        if sample.task.id == self.task:
            raise LookupError(f"no verdict on {sample.task.question}")
        return 1.0


class Interrupts:
    """A reward that is interrupted at one of its calls, as Ctrl-C would do it."""

    def __init__(self, call: int) -> None:
        self.calls_left = call

    def __call__(self, sample: Sample) -> float:
        self.calls_left -= 1
        if self.calls_left == 0:
            raise KeyboardInterrupt
        return 0.0


class NaNAt:
    """The GRPO loss, NaN at one of its calls."""

    needs_reference = False
    trains_flat_groups = False

    def __init__(self, call: int) -> None:
        self.calls_left = call
        self.objective = PolicyObjective()

    def __call__(self, policy_logprobs: Tensor, batch: TrainBatch) -> LossOutput:
        self.calls_left -= 1
        factor = float("nan") if self.calls_left == 0 else 1.0
        return self.objective(policy_logprobs * factor, batch)


class DiesInSave:
    """A constant rate; the process is killed while this is saved after ``updates`` updates."""

    def __init__(self, optimizer: Optimizer, num_training_steps: int, updates: int) -> None:
        self.updates = updates
        self.schedule = constant_schedule(optimizer, num_training_steps)

    def step(self) -> None:
        self.schedule.step()

    def get_last_lr(self) -> list[float]:
        return self.schedule.get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        if self.schedule.last_epoch == self.updates:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.schedule.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.schedule.load_state_dict(state)
