"""What the rest of the project asks of a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Tokenizer(Protocol):
    """Text to ids and back, total in both directions.

    Attributes:
        pad_id: fills a batch's unused places. It may equal a stop id, so masks are never made from it.
        stop_ids: ids that end an assistant's turn.
        vocab_size: the highest defined id plus one. A model may have fewer or more logits.
    """

    pad_id: int
    stop_ids: tuple[int, ...]
    vocab_size: int

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``, without BOS or EOS. Text that spells a control token stays text."""
        ...

    def encode_prompt(self, text: str, prefill: str = "") -> list[int]:
        """Ids of a plain-text prompt; BOS once at its start if the tokenizer uses BOS.

        ``text`` is neutralised as in :meth:`encode`. ``prefill`` comes from the configuration, so
        tokens that it spells become tokens.
        """
        ...

    def render_chat(self, messages: list[dict[str, str]], prefill: str = "") -> list[int]:
        """Ids of a chat (``role`` and ``content`` each), the header of the assistant's turn, and ``prefill``.

        Contents are neutralised as in :meth:`encode`; ``prefill`` is not.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of any ids.

        Undefined, pad, stop and BOS ids give nothing. Other special tokens keep their text: a tag such
        as ``<think>`` may be registered as special, and rewards must see it.
        """
        ...

    def is_defined(self, token_id: int) -> bool:
        """Whether the tokenizer knows this id."""
        ...

    def undefined_ids(self, num_logits: int) -> list[int]:
        """Ids in ``[0, num_logits)`` that a model can sample and the tokenizer does not know."""
        ...
