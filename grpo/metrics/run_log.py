"""Everything a run writes for people and plots: metrics, samples, progress."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor
from tqdm import tqdm

from grpo.distributed import SOLO, Ranks
from grpo.metrics.jsonl import JsonlWriter
from grpo.types import Scored


class MetricLogger(Protocol):
    """torchtune's metric loggers (disk, TensorBoard, W&B, ...)."""

    def log_dict(self, payload: Mapping[str, Any], step: int) -> None: ...

    def close(self) -> None: ...


class RunLog:
    """``metrics.jsonl``, ``rollouts.jsonl``, an optional torchtune logger, and a progress bar.

    Args:
        output_dir: where the files go.
        steps_done: 0, or the step that is resumed; later lines of the files are cut off.
        total_steps: where the progress bar ends.
        rollouts_every: write sampled completions every so many steps; None never.
        metric_logger: gets the same numbers as ``metrics.jsonl``.
        ranks: all of them; rank 0 writes for all, and every rank calls each method.
    """

    def __init__(
        self,
        output_dir: str | Path,
        *,
        steps_done: int,
        total_steps: int,
        rollouts_every: int | None = None,
        metric_logger: MetricLogger | None = None,
        ranks: Ranks = SOLO,
    ) -> None:
        self._ranks = ranks
        self._rollouts_every = rollouts_every
        if not ranks.is_main:
            return
        output_dir = Path(output_dir)
        keep = steps_done if steps_done else -1  # a run from the start writes step 0 itself
        self._metrics = JsonlWriter(output_dir / "metrics.jsonl", keep)
        self._rollouts = JsonlWriter(output_dir / "rollouts.jsonl", keep)
        self._logger = metric_logger
        self._bar = tqdm(total=total_steps, initial=steps_done, desc="train", unit="step", dynamic_ncols=True)
        if steps_done >= total_steps:
            self.say(f"step {steps_done} is done, and the run ends at step {total_steps}: nothing to train")

    def metrics(self, step: int, values: Mapping[str, float | int | None]) -> None:
        """One line for the step, and its reward and success on the progress bar."""
        if not self._ranks.is_main:
            return
        self._metrics.write({"step": step, **values})
        if self._logger is not None:
            self._logger.log_dict({k: v for k, v in values.items() if v is not None}, step=step)
        shown = {"reward": values.get("reward/mean"), "success": values.get("success_rate")}
        self._bar.set_postfix({k: f"{v:.3f}" for k, v in shown.items() if v is not None}, refresh=False)
        self._bar.update(step - self._bar.n)

    def rollouts(self, step: int, scored: Scored, advantages: Tensor) -> None:
        """What was sampled and what it earned, a line per sequence, on the steps that ask for it."""
        if not self._rollouts_every or step % self._rollouts_every:
            return
        for part, part_advantages in self._ranks.gather((scored, advantages)):
            self._write_rollouts(step, part, part_advantages)

    def _write_rollouts(self, step: int, scored: Scored, advantages: Tensor) -> None:
        rollouts = scored.rollouts
        for i in range(len(scored)):
            self._rollouts.write(
                {
                    "step": step,
                    "group": rollouts.group_ids[i],
                    "task": rollouts.tasks[i].id,
                    "question": rollouts.tasks[i].question,
                    "answer": rollouts.tasks[i].answer,
                    "completion": rollouts.prefills[i] + rollouts.texts[i],
                    "tokens": len(rollouts.completion_ids[i]),
                    "finish_reason": rollouts.finish_reasons[i],
                    "reward": scored.rewards[i],
                    "parts": {name: values[i] for name, values in scored.components.items()},
                    "success": scored.success[i],
                    "advantage": advantages[i].item(),
                }
            )

    def say(self, text: str) -> None:
        """A line above the progress bar."""
        if self._ranks.is_main:
            self._bar.write(text)

    def close(self) -> None:
        if not self._ranks.is_main:
            return
        self._bar.close()
        self._metrics.close()
        self._rollouts.close()
        if self._logger is not None:
            self._logger.close()
