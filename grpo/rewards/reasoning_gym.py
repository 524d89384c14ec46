"""Scores of reasoning-gym's procedural tasks, by the library's own verifiers."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from grpo.config.errors import ConfigError
from grpo.rewards.answer import AnswerFinder
from grpo.types import Sample, Task


class ReasoningGymScorer:
    """What the task's generator says of the answer, usually in [0, 1].

    Reads ``task.metadata["reasoning_gym"] = {"name": generator, "entry": its item}``. A completion
    without an answer gets 0.0 without asking. Many generators give partial credit: the common
    rule gives an answer that contains the reference a share of its length (12 for 2 is 0.5);
    ``threshold: 1.0`` gives credit to right answers only.

    Args:
        extract: where the answer stands: ``tag``, ``boxed``, ``hash``, ``last_number`` or ``auto``.
        tag: the tag's name.
        threshold: None returns the raw score; a number returns 1.0 from there on, else 0.0.
        stop_strings: cut the text at the first of these before looking.

    Raises:
        ConfigError: the package is missing, or an argument that cannot be.
    """

    def __init__(
        self,
        extract: Literal["tag", "boxed", "hash", "last_number", "auto"] = "tag",
        tag: str = "answer",
        threshold: float | None = None,
        stop_strings: Sequence[str] = (),
    ) -> None:
        if importlib.util.find_spec("reasoning_gym") is None:
            raise ConfigError("ReasoningGymScorer needs the package: pip install reasoning-gym")
        if threshold is not None and not 0 < threshold <= 1:
            raise ConfigError(f"threshold: expected a number in (0, 1] or null, got {threshold}")
        self._find = AnswerFinder(extract, tag, stop_strings)
        self._threshold = threshold
        self._verifiers: dict[str, Callable[[str, dict[str, Any]], float]] = {}

    def __call__(self, sample: Sample) -> float:
        """The score; raises ValueError where the task is none of reasoning-gym's."""
        name, entry = _origin(sample.task)
        answer = self._find(sample.text)
        if answer is None:
            return 0.0
        if name not in self._verifiers:
            # Imported here: it takes a second, and only these tasks need it.
            import reasoning_gym

            self._verifiers[name] = reasoning_gym.get_score_answer_fn(name)
        value = float(self._verifiers[name](answer, entry))
        return value if self._threshold is None else float(value >= self._threshold)

    @staticmethod
    def check(**kwargs: object) -> None:
        """What the constructor checks, before anything is loaded."""
        ReasoningGymScorer(**kwargs)


def _origin(task: Task) -> tuple[str, dict[str, Any]]:
    origin = task.metadata.get("reasoning_gym")
    if not isinstance(origin, Mapping) or not {"name", "entry"} <= origin.keys():
        raise ValueError(
            f"task {task.id!r} is none of reasoning-gym's: its metadata lacks reasoning_gym.name and .entry"
        )
    return origin["name"], origin["entry"]
