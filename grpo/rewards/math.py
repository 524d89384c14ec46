"""The reward for mathematical answers that may be written in many ways."""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Sequence
from typing import Literal

from grpo.config.errors import ConfigError
from grpo.rewards.answer import AnswerFinder, reference_answer
from grpo.rewards.extraction import last_boxed, last_hash
from grpo.rewards.math_process import GraderProcess
from grpo.rewards.numeric import numbers_equal, parse_number
from grpo.types import Sample

_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mbox)\s*\{([^{}]*)\}")
_WORDS = re.compile(r"[A-Za-z][A-Za-z .,'-]{3,}")


class MathCorrectness:
    r"""1.0 where the answer equals the task's, else 0.0; no answer is 0.0.

    Two numbers are compared exactly and at once; anything else goes to math-verify in a process
    of its own (all elements of a list must agree, equations are compared as equations). Works in
    any thread. Raises where no verdict can be had, which :func:`grpo.rewards.score` counts.

    Args:
        extract: where the answer stands: ``auto`` takes the first of answer tag, ``\boxed``,
            ``####`` and last number of which the text has a trace. A box inside of what is found
            is opened.
        tag: the tag's name.
        rel_tolerance: how far, as a share of the reference, a number may lie off; 0 is exact.
        timeout_seconds: CPU time for one comparison.
        max_answer_chars: a longer answer is wrong without being looked at.
        stop_strings: cut the text at the first of these before looking.

    Raises:
        ConfigError: math-verify is missing, or an argument that cannot be.
    """

    def __init__(
        self,
        extract: Literal["auto", "tag", "boxed", "hash", "last_number"] = "auto",
        tag: str = "answer",
        rel_tolerance: float = 0.0,
        timeout_seconds: float = 5.0,
        max_answer_chars: int = 512,
        stop_strings: Sequence[str] = (),
    ) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise ConfigError("MathCorrectness needs the package: pip install math-verify")
        if not 0 <= rel_tolerance < 1:
            raise ConfigError(f"rel_tolerance: expected a number in [0, 1), got {rel_tolerance}")
        if not (timeout_seconds > 0 and math.isfinite(timeout_seconds)):
            raise ConfigError(f"timeout_seconds: expected a number over 0, got {timeout_seconds}")
        if max_answer_chars < 1:
            raise ConfigError(f"max_answer_chars: expected at least 1, got {max_answer_chars}")
        self._find = AnswerFinder(extract, tag, stop_strings)
        self._rel_tolerance = rel_tolerance
        self._max_answer_chars = max_answer_chars
        self._grader = GraderProcess(timeout_seconds)

    def __call__(self, sample: Sample) -> float:
        """1.0 or 0.0.

        Raises:
            ValueError: the task has no answer.
            TimeoutError, RuntimeError: the comparison took too long or failed.
        """
        gold = _gold(reference_answer(sample.task))
        answer = self._find(sample.text)
        if answer is not None:
            answer = last_boxed(answer) or answer
        if not answer or len(answer) > self._max_answer_chars:
            return 0.0
        return float(self._equal(gold, answer))

    def _equal(self, gold: str, answer: str) -> bool:
        numbers = parse_number(gold), parse_number(answer)
        if None not in numbers:
            return numbers_equal(*numbers, self._rel_tolerance)
        if gold == answer:
            return True
        words = _TEXT.sub(r"\1", gold).strip(), _TEXT.sub(r"\1", answer).strip(" .$")
        if _WORDS.fullmatch(words[0]):
            # As mathematics a word is a product of letters: "listen" would be "silent".
            return words[0].casefold() == words[1].casefold()
        return self._grader.equal(gold, answer, self._rel_tolerance)

    @staticmethod
    def check(**kwargs: object) -> None:
        """What the constructor checks, before anything is loaded."""
        MathCorrectness(**kwargs)


def _gold(answer: str) -> str:
    r"""The reference itself, where a dataset gives a solution that ends in ``\boxed`` or ``####``."""
    return last_boxed(answer) or last_hash(answer) or answer
