"""Components for runs in which something goes wrong at a known moment."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from grpo.loss import PolicyObjective
from grpo.schedule import constant_schedule
from grpo.types import LossOutput, PromptBatch, Rollouts, Sample, SamplingParams, TrainBatch


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


class FaultAt:
    """The GRPO loss, on one rank preceded by a fault at one of its calls, but once in all processes.

    Args:
        call: counted from 1, in each process anew.
        fault: ``raise`` an error, or send SIGTERM to ``self`` or to the ``launcher``.
        marker: file that says that the fault has been.
        rank: on which it happens.
    """

    needs_reference = False
    trains_flat_groups = False

    def __init__(self, call: int, fault: str, marker: str, rank: int = 0) -> None:
        self.calls_left = call
        self.fault = fault
        self.marker = Path(marker)
        self.is_here = int(os.environ.get("RANK", "0")) == rank
        self.objective = PolicyObjective()

    def __call__(self, policy_logprobs: Tensor, batch: TrainBatch) -> LossOutput:
        self.calls_left -= 1
        if self.is_here and self.calls_left == 0 and not self.marker.exists():
            self.marker.touch()
            if self.fault == "raise":
                raise ArithmeticError("this loss fails on purpose")
            os.kill({"self": os.getpid, "launcher": os.getppid}[self.fault](), signal.SIGTERM)
        return self.objective(policy_logprobs, batch)


def _draws(*key: object) -> random.Random:
    return random.Random("/".join(map(str, key)))


class Scripted:
    """An engine whose completions are a function of the task and the sample's number alone.

    What is sampled then depends neither on weights nor on ranks: lengths are ragged, and every
    fourth task gets samples that all are the same.
    """

    def __init__(self, *, tokenizer: Any, **_: Any) -> None:
        self.tokenizer = tokenizer

    def generate(self, prompts: PromptBatch, sampling: SamplingParams, num_samples: int = 1) -> Rollouts:
        owners = [i for i in range(len(prompts)) for _ in range(num_samples)]
        ids = [self._completion(prompts.tasks[i].id, n % num_samples, sampling) for n, i in enumerate(owners)]
        return Rollouts(
            prompt_ids=[prompts.prompt_ids[i] for i in owners],
            completion_ids=ids,
            loss_mask=[[1] * len(row) for row in ids],
            sampler_logprobs=[[-1.0] * len(row) for row in ids],
            finish_reasons=["length"] * len(ids),
            texts=[self.tokenizer.decode(row) for row in ids],
            group_ids=[prompts.group_ids[i] for i in owners],
            tasks=[prompts.tasks[i] for i in owners],
            prefills=[prompts.prefills[i] for i in owners],
            undefined_tokens=[0] * len(ids),
        )

    def _completion(self, task: str, sample: int, sampling: SamplingParams) -> list[int]:
        flat = _draws("flat", task).randrange(4) == 0
        draws = _draws(task, 0 if flat else sample)
        length = draws.randint(1, sampling.max_generated_tokens)
        return [draws.randrange(4, 100) for _ in range(length)]

    def update_weights(self, model: Any) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass

    def reseed(self, number: int) -> None:
        pass


def draws_a_lot(sample: Sample) -> float:
    """A reward between 0 and 1 that is a function of the completion, and 1 in about half of all."""
    return min(1.0, 2 * _draws("reward", sample.text).random())


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
