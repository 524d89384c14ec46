"""Which ids a tokenizer defines, which of them are silent, and how untrusted text is kept harmless."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The ids of a tokenizer.

    Attributes:
        defined: every id with a token.
        silent: ids that decode to nothing although they are defined (pad, stop, BOS).
    """

    defined: frozenset[int]
    silent: frozenset[int]

    @property
    def size(self) -> int:
        """The highest defined id plus one."""
        return max(self.defined) + 1

    def is_defined(self, token_id: int) -> bool:
        """Whether ``token_id`` has a token."""
        return token_id in self.defined

    def undefined_ids(self, num_logits: int) -> list[int]:
        """Ids in ``[0, num_logits)`` without a token."""
        return [i for i in range(num_logits) if i not in self.defined]

    def audible(self, ids: Sequence[int]) -> list[int]:
        """The ids that decode to text, in order."""
        return [i for i in ids if i in self.defined and i not in self.silent]


class ControlTokens:
    """Finds the control tokens that a text spells, and takes them apart.

    A question may contain ``<|im_end|>``, by accident or to forge a turn. A tokenizer that meets it
    would emit the real control token. Cutting after its first character, wherever one starts, leaves
    no whole control token behind and changes no character.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        names = sorted({token for token in tokens if token})
        single = [token for token in names if len(token) == 1]
        longer = [token for token in names if len(token) > 1]
        self._single = re.compile("[" + re.escape("".join(single)) + "]") if single else None
        # A lookahead, so that every start counts even where two spellings overlap.
        alternatives = "|".join(re.escape(token) for token in longer)
        self._start = re.compile(f"(?=(?:{alternatives}))(.)", re.DOTALL) if longer else None

    def split(self, text: str) -> list[str]:
        """Pieces of ``text`` that spell no control token; joined, they are the text.

        A control token of one character cannot be cut, and is left out.
        """
        if self._single is not None:
            text = self._single.sub("", text)
        if self._start is None:
            return [text]
        cuts = [match.end() for match in self._start.finditer(text)]
        edges = [0, *cuts, len(text)]
        return [text[begin:end] for begin, end in zip(edges, edges[1:], strict=False)]
