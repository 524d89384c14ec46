"""One place that says how a reward finds the answer in a completion."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from grpo.config.errors import ConfigError, nearest
from grpo.rewards.extraction import cut_at_stop, last_boxed, last_hash, strip_end_markers, tag_content
from grpo.rewards.numeric import last_number
from grpo.types import Task

Extract = Literal["tag", "boxed", "hash", "last_number", "auto"]

_TAG = re.compile(r"[A-Za-z][\w-]*")


@dataclass(frozen=True, slots=True)
class AnswerFinder:
    r"""Finds the answer in a completion, in one declared way.

    Attributes:
        extract: ``tag`` (the last opened ``<tag>``), ``boxed`` (the last ``\boxed``), ``hash``
            (after the last ``####``), ``last_number``, or ``auto``: the first of these four of
            which the text has a trace. A trace decides: an answer tag that never closes means no
            answer, also where a box or a number stands in the text.
        tag: the tag's name.
        stop_strings: the text is cut at the first of these before anything is looked for.

    Raises:
        ConfigError: an unknown way, a name that is no tag's, an empty stop string.
    """

    extract: Extract
    tag: str = "answer"
    stop_strings: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.extract not in get_args(Extract):
            hint = nearest(str(self.extract), get_args(Extract))
            raise ConfigError(f"extract: no such way to find an answer: {self.extract!r}{hint}")
        check_tag("tag", self.tag)
        if isinstance(self.stop_strings, str) or not all(self.stop_strings):
            raise ConfigError(
                f"stop_strings: expected a list of strings that are not empty, got {self.stop_strings!r}"
            )

    def __call__(self, text: str) -> str | None:
        """The answer, or None where there is none or an incomplete one."""
        text = strip_end_markers(cut_at_stop(text, self.stop_strings))
        way = self._trace(text) if self.extract == "auto" else self.extract
        if way == "tag":
            return tag_content(text, self.tag)
        return {"boxed": last_boxed, "hash": last_hash, "last_number": last_number}[way](text)

    def _trace(self, text: str) -> str:
        if f"<{self.tag}>" in text:
            return "tag"
        if "\\boxed" in text or "\\fbox" in text:
            return "boxed"
        return "hash" if last_hash(text) is not None else "last_number"


def check_tag(argument: str, tag: object) -> None:
    """Whether a string can be a tag's name.

    Raises:
        ConfigError: it cannot; names ``argument``.
    """
    if not isinstance(tag, str) or not _TAG.fullmatch(tag):
        raise ConfigError(f"{argument}: expected a tag's name without brackets, such as answer, got {tag!r}")


def reference_answer(task: Task) -> str:
    """The task's answer, for rewards that cannot judge without.

    Raises:
        ValueError: it has none: the dataset does not fit the reward.
    """
    if task.answer is None or not task.answer.strip():
        raise ValueError(f"task {task.id!r} has no reference answer to compare with")
    return task.answer.strip()
