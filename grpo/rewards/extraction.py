"""Where the answer stands in a completion. Pure functions of text; None where there is none.

All of them are strict about text that was cut: a box or a tag that opens and never closes is no
answer, and what stood in an earlier one is not taken in its place.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# What tokenizers write where a turn ends or a row is padded. Engines leave the stop token out of the
# text; these may still stand in text from elsewhere. Tags such as </answer> are never among them,
# also where a tokenizer registers them as special tokens.
END_MARKERS = (
    *("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
    *("<|end|>", "<end_of_turn>", "<eos>", "</s>", "<pad>", "<|finetune_right_pad_id|>"),
)

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_CONTROL_SEQUENCE = re.compile(r"\\(?:[A-Za-z]+|.)", re.DOTALL)
_HASH = re.compile(r"(?<!#)####(?!#)")


def last_boxed(text: str) -> str | None:
    r"""The argument of the last ``\boxed`` or ``\fbox`` that opens in the text.

    Braces are counted (``\{`` and ``\}`` are characters, not braces). Without braces TeX takes
    the next token, so ``\boxed 2$`` holds ``2``.

    Example:
        >>> last_boxed(r"so \boxed{\frac{3}{4}}.")
        '\\frac{3}{4}'
    """
    start = None
    for match in _BOX.finditer(text):
        start = match.end()
    if start is None or start == len(text):
        return None
    if text[start] == "{":
        return _braced(text, start) or None
    if text[start] == "\\":
        token = _CONTROL_SEQUENCE.match(text, start)
        return token.group() if token else None
    return text[start] if text[start] not in "}$" else None


def last_hash(text: str) -> str | None:
    """What follows the last ``####`` on its line; a marker with nothing after it is none.

    Example:
        >>> last_hash("Example: #### 5" + chr(10) + "Now mine: #### 72")
        '72'
    """
    followers = (part.partition("\n")[0].strip() for part in reversed(_HASH.split(text)[1:]))
    return next((follower for follower in followers if follower), None)


def tag_content(text: str, tag: str) -> str | None:
    """What stands in the last opened ``<tag>``, stripped; None where it never closes.

    Example:
        >>> tag_content("<answer>Rome</answer> ... <answer>Lis", "answer") is None
        True
    """
    _, opened, rest = text.rpartition(f"<{tag}>")
    content, closed, _ = rest.partition(f"</{tag}>")
    return content.strip() if opened and closed else None


def cut_at_stop(text: str, stop_strings: Sequence[str]) -> str:
    """The text before the first of the stop strings: what a model writes after it is no answer.

    Example:
        >>> cut_at_stop("#### 72 Question: and then?", ["Question:"])
        '#### 72 '
    """
    ends = [end for stop in stop_strings if (end := text.find(stop)) >= 0]
    return text[: min(ends)] if ends else text


def strip_end_markers(text: str, markers: Sequence[str] = END_MARKERS) -> str:
    """The text without end-of-turn and padding markers at its end, and without space there."""
    text = text.rstrip()
    while marker := next((m for m in markers if text.endswith(m)), None):
        text = text.removesuffix(marker).rstrip()
    return text


def _braced(text: str, start: int) -> str | None:
    """What the brace at ``start`` encloses, or None where it never closes."""
    depth, i = 0, start
    while i < len(text):
        if text[i] == "\\":
            i += 2
            continue
        depth += (text[i] == "{") - (text[i] == "}")
        if depth == 0:
            return text[start + 1 : i].strip()
        i += 1
    return None
