"""The one error a user's input raises, and the hint that goes with a typo."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ConfigError(ValueError):
    """Bad input, told in one line: the key, file or value, and what was expected.

    Recipes print it and exit with status 2.
    """


def nearest(name: str, valid: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` for the closest valid name, or an empty string.

    Falls back to the list of valid names where none is close and the list is short.
    """
    names = sorted(set(valid))
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f" (did you mean {close[0]!r}?)"
    return f" (valid: {', '.join(names)})" if 0 < len(names) <= 12 else ""
