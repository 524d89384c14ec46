"""Numbers as people and models write them, read exactly.

A number is read into a :class:`fractions.Fraction`, so that 18.00 is 18, 1/2 is 0.5, and nothing
is rounded. What counts as one number:

* ``1,234`` and LaTeX's ``7{,}300`` group thousands; a comma elsewhere parts two numbers.
* ``1e3``, ``1/2``, ``1 1/2`` (one and a half), ``\\frac{1}{2}``, ``+7``, ``007``, ``.5``.
* A currency sign or word, a per cent sign and a final period are dropped: ``$18.00``,
  ``18 dollars.``, and ``50%`` is 50 (as answers to "what percentage" are written).
"""

from __future__ import annotations

import re
from fractions import Fraction

# Longer strings are no answers, and Python refuses integers of more than 4300 digits.
_MAX_CHARS = 1000

_INTEGER = r"(?:[0-9]{1,3}(?:(?:,|\{,\})[0-9]{3})+(?![0-9])|[0-9]+)"
_NOT_ZERO = r"[0-9]*[1-9][0-9]*"
# The exponent is bounded: 1e999999999 would be an integer that fills the memory.
_NUMERAL = rf"""
    \\[dt]?frac\{{(?P<top>-?[0-9]+)\}}\{{(?P<bottom>{_NOT_ZERO})\}}
  | \\[dt]?frac(?P<top_digit>[0-9])(?P<bottom_digit>[1-9])
  | (?P<whole>[0-9]+)[ ](?P<part>[0-9]+)/(?P<of>{_NOT_ZERO})(?!\.?[0-9])
  | (?P<over>{_INTEGER})[ ]?/[ ]?(?P<under>{_NOT_ZERO})(?!\.?[0-9])
  | (?P<decimal>(?:{_INTEGER}(?:\.[0-9]+)?|(?<![0-9.])\.[0-9]+)(?:[eE][-+]?[0-9]{{1,3}}(?![0-9A-Za-z]))?)
"""
_CURRENCY = r"\\?[$€£¥]"
_UNIT = r"%|\\%|€|£|¥|(?:dollars?|euros?|USD|EUR|GBP)\b"

_WHOLE_STRING = re.compile(
    rf"\$*\s*(?P<sign>[-+]?)\s*(?:{_CURRENCY})?\s*(?P<sign_after>[-+]?)"
    rf"(?:{_NUMERAL})\.?\s*(?:{_UNIT})?\.?\s*\$*\.?",
    re.VERBOSE,
)
# A sign belongs to the number unless it joins it to what stands before: 10-5 ends in 5.
_SOMEWHERE = re.compile(
    rf"(?<![0-9])(?<![0-9]\.)(?P<sign>(?:(?<![\w)\]}}])[-+])?)(?:{_CURRENCY}[ ]?)?"
    rf"(?P<sign_after>[-+]?)(?:{_NUMERAL})",
    re.VERBOSE,
)
_SEPARATOR = re.compile(r"\{,\}|,")
_LATEX_SPACE = re.compile(r"\\[!,;: ]")


def parse_number(text: str) -> Fraction | None:
    """The number that the whole string is, or None where it is anything else.

    Example:
        >>> parse_number("$1,200.50"), parse_number("1 or 2")
        (Fraction(2401, 2), None)
    """
    if len(text) > _MAX_CHARS:
        return None
    match = _WHOLE_STRING.fullmatch(_plain(text).strip())
    if match is None or (match["sign"] and match["sign_after"]):
        return None
    value = _value(match)
    return -value if "-" in (match["sign"], match["sign_after"]) else value


def last_number(text: str) -> str | None:
    """The last number in running text, without separators and currency, or None.

    Reading it with :func:`parse_number` gives its value.

    Example:
        >>> last_number("She sold 1,036 eggs, in all.")
        '1036'
    """
    match = None
    for match in _SOMEWHERE.finditer(_plain(text)):  # noqa: B007 - the last one is wanted
        pass
    if match is None:
        return None
    sign = "-" if "-" in (match["sign"], match["sign_after"]) else ""
    return sign + _SEPARATOR.sub("", match.string[match.end("sign_after") : match.end()])


def numbers_equal(gold: Fraction, answer: Fraction, rel_tolerance: float = 0.0) -> bool:
    """Whether two numbers are equal: exactly, or within a share of the gold one.

    There is no absolute tolerance: between small numbers it would accept anything.

    Args:
        gold: the reference.
        answer: the number judged.
        rel_tolerance: the largest ``|answer - gold| / |gold|`` accepted; 0 means exactly equal.
    """
    return abs(answer - gold) <= Fraction(rel_tolerance) * abs(gold)


def _plain(text: str) -> str:
    """One minus sign, and no LaTeX spacing within numbers."""
    return _LATEX_SPACE.sub("", text.replace("\u2212", "-"))


def _value(match: re.Match[str]) -> Fraction:
    """The numeral of a match, without its sign."""
    if match["decimal"] is not None:
        return Fraction(_SEPARATOR.sub("", match["decimal"]))
    if match["whole"] is not None:
        return int(match["whole"]) + Fraction(int(match["part"]), int(match["of"]))
    if match["over"] is not None:
        return Fraction(int(_SEPARATOR.sub("", match["over"])), int(match["under"]))
    top, bottom = match["top"] or match["top_digit"], match["bottom"] or match["bottom_digit"]
    return Fraction(int(top), int(bottom))
