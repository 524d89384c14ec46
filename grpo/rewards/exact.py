"""The reward for tasks whose answer is one number or one string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from grpo.rewards.answer import AnswerFinder, reference_answer
from grpo.rewards.numeric import numbers_equal, parse_number
from grpo.types import Sample


class ExactAnswer:
    r"""1.0 where the answer is the task's, else 0.0; nothing in between.

    Two numbers are compared as exact numbers (18.00 is 18, 12 is not 2), anything else as
    stripped strings, upper and lower case apart.

    Args:
        extract: where the answer stands: ``tag``, ``boxed``, ``hash`` or ``last_number``.
        tag: the tag's name.
        stop_strings: cut the text at the first of these before looking.

    Raises:
        ConfigError: an argument that cannot be.

    Example (YAML):
        rewards:
          - _component_: grpo.rewards.ExactAnswer
            tag: answer
            success: true
    """

    def __init__(
        self,
        extract: Literal["tag", "boxed", "hash", "last_number"] = "tag",
        tag: str = "answer",
        stop_strings: Sequence[str] = (),
    ) -> None:
        self._find = AnswerFinder(extract, tag, stop_strings)

    def __call__(self, sample: Sample) -> float:
        """1.0 or 0.0; raises ValueError where the task has no answer."""
        gold = reference_answer(sample.task)
        answer = self._find(sample.text)
        if answer is None:
            return 0.0
        numbers = parse_number(gold), parse_number(answer)
        if None in numbers:
            return float(answer.strip() == gold)
        return float(numbers_equal(*numbers))

    @staticmethod
    def check(**kwargs: object) -> None:
        """What the constructor checks, before anything is loaded."""
        ExactAnswer(**kwargs)
