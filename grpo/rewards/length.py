"""Rewards that look at a completion's length, in sampled tokens (the stop token included)."""

from __future__ import annotations

import math

from grpo.config.errors import ConfigError
from grpo.rewards.protocol import Reward
from grpo.types import Sample


class CosineLength:
    """A right answer earns less the longer it is, a wrong one loses less: a half cosine over length.

    Yeo et al., "Demystifying Long Chain-of-Thought Reasoning in LLMs" (arXiv 2502.03373),
    section 4, without its extra penalty at the limit: with ``t = min(num_tokens, max_tokens)``,
    ``long + (short - long) / 2 * (1 + cos(pi * t / max_tokens))``. Past ``max_tokens`` the value
    stays where the schedule ends.

    Args:
        correctness: the reward that says whether the sample is right (1.0 or more); in YAML a
            nested component. Where it abstains, this abstains.
        max_tokens: length at which the schedule ends.
        correct_short, correct_long: value of a right answer at length 0 and at ``max_tokens``.
        wrong_short, wrong_long: the same for a wrong one.

    Raises:
        ConfigError: ``max_tokens`` below 1, or a value that is not finite.
    """

    def __init__(
        self,
        correctness: Reward,
        max_tokens: int,
        correct_short: float = 1.0,
        correct_long: float = 0.5,
        wrong_short: float = -1.0,
        wrong_long: float = -0.5,
    ) -> None:
        _at_least_one("max_tokens", max_tokens)
        values = {"correct_short": correct_short, "correct_long": correct_long}
        values |= {"wrong_short": wrong_short, "wrong_long": wrong_long}
        for name, value in values.items():
            if not math.isfinite(value):
                raise ConfigError(f"{name}: expected a finite number, got {value}")
        self._correctness = correctness
        self._max_tokens = max_tokens
        self._correct = (correct_short, correct_long)
        self._wrong = (wrong_short, wrong_long)

    def __call__(self, sample: Sample) -> float | None:
        """The scheduled value; None where correctness abstains."""
        right = self._correctness(sample)
        if right is None:
            return None
        short, long = self._correct if right >= 1.0 else self._wrong
        progress = min(sample.num_tokens / self._max_tokens, 1.0)
        return long + (short - long) / 2 * (1 + math.cos(math.pi * progress))

    @staticmethod
    def check(**kwargs: object) -> None:
        """What the constructor checks, before anything is loaded."""
        CosineLength(**kwargs)


class SoftOverlong:
    """DAPO's soft overlong punishment: 0, then falling linearly to -1 at the limit.

    Yu et al., "DAPO" (arXiv 2503.14476), equation 13: 0 up to ``max_tokens - cache_tokens``,
    -1 beyond ``max_tokens``, between them ``(max_tokens - cache_tokens - length) / cache_tokens``.

    Args:
        max_tokens: the paper's L_max.
        cache_tokens: the paper's L_cache, the width of the slope.

    Raises:
        ConfigError: below 1, or a slope longer than the limit.
    """

    def __init__(self, max_tokens: int, cache_tokens: int) -> None:
        _at_least_one("max_tokens", max_tokens)
        _at_least_one("cache_tokens", cache_tokens)
        if cache_tokens > max_tokens:
            raise ConfigError(f"cache_tokens: expected at most max_tokens ({max_tokens}), got {cache_tokens}")
        self._free = max_tokens - cache_tokens
        self._cache_tokens = cache_tokens

    def __call__(self, sample: Sample) -> float:
        """A value in [-1, 0]."""
        over = max(sample.num_tokens - self._free, 0)
        return 0.0 if over == 0 else max(-over / self._cache_tokens, -1.0)

    @staticmethod
    def check(**kwargs: object) -> None:
        """What the constructor checks, before anything is loaded."""
        SoftOverlong(**kwargs)


def _at_least_one(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name}: expected an integer of at least 1, got {value!r}")
