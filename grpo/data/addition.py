"""Sums of two numbers: the tasks that the embedded model can learn in minutes."""

from __future__ import annotations

import hashlib
import random

from grpo.config.errors import ConfigError, nearest
from grpo.data.files import positive
from grpo.types import Task

_SPLITS = ("train", "test")


def addition_dataset(size: int, seed: int = 0, split: str = "train", digits: int = 2) -> list[Task]:
    """Distinct sums such as ``12+34``, drawn without replacement from one side of a fixed split.

    A hash puts about a tenth of all unordered pairs on the test side, whatever the seed: neither a test
    sum nor its mirror image is ever trained on. A larger size continues a smaller one of the same seed.

    Args:
        size: how many sums.
        seed: which, and in what order.
        split: ``train`` or ``test``.
        digits: the terms run from 0 to ``10**digits - 1``; 1 to 3.

    Raises:
        ConfigError: an impossible value; a size beyond the sums there are.
    """
    pairs = _checked_pairs(size, split, digits)
    random.Random(f"addition {seed} {split} {digits}").shuffle(pairs)
    return [Task(id=f"addition-{a}+{b}", question=f"{a}+{b}", answer=str(a + b)) for a, b in pairs[:size]]


def _check_addition_dataset(size: int, seed: int = 0, split: str = "train", digits: int = 2) -> None:
    """The values are possible, and there are so many sums."""
    _checked_pairs(size, split, digits)


addition_dataset.check = _check_addition_dataset


def _checked_pairs(size: int, split: str, digits: int) -> list[tuple[int, int]]:
    positive("size", size)
    if split not in _SPLITS:
        raise ConfigError(f"split: no split {split!r}{nearest(str(split), _SPLITS)}")
    if isinstance(digits, bool) or digits not in (1, 2, 3):
        raise ConfigError(f"digits: expected 1, 2 or 3, got {digits!r}")
    terms = range(10**digits)
    pairs = [(a, b) for a in terms for b in terms if _is_test(a, b) == (split == "test")]
    if size > len(pairs):
        raise ConfigError(
            f"size: {size} sums asked for, but the {split} split of {digits} digits has {len(pairs)}"
        )
    return pairs


def _is_test(a: int, b: int) -> bool:
    # Python's own hash() is salted per process for texts and regular for integers.
    key = f"{min(a, b)}+{max(a, b)}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") % 10 == 0
