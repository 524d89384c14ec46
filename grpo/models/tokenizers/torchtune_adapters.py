"""Torchtune's own tokenizers (Llama 3, Qwen 2.5) behind the project's protocol, made total."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from tiktoken import Encoding
from torchtune.data import Message
from torchtune.models import llama3, qwen2_5

from grpo.config.errors import ConfigError
from grpo.models.tokenizers.vocabulary import ControlTokens, Vocabulary


class _TorchtuneModel(Protocol):
    """What is used of a torchtune tokenizer."""

    pad_id: int
    bos_id: int | None
    stop_tokens: list[int]
    special_tokens: dict[str, int]

    def encode(self, text: str, add_bos: bool, add_eos: bool) -> list[int]: ...


class TorchtuneTokenizer:
    """A torchtune tokenizer that knows its undefined ids and keeps untrusted text harmless.

    Satisfies :class:`grpo.models.tokenizers.protocol.Tokenizer`.

    Args:
        model: the tokenizer.
        defined: the ids that have a token.
        split: a text to pieces that :meth:`encode` of the model turns into no control token.
        chat_ids: messages to ids, without an end token after the last, which is the assistant's.
        decode_ids: defined ids to text, special tokens kept.
    """

    def __init__(
        self,
        model: _TorchtuneModel,
        *,
        defined: frozenset[int],
        split: Callable[[str], list[str]],
        chat_ids: Callable[[list[Message]], list[int]],
        decode_ids: Callable[[list[int]], str],
    ) -> None:
        self.pad_id = model.pad_id
        self.stop_ids = tuple(model.stop_tokens)
        self._model = model
        self._split = split
        self._chat_ids = chat_ids
        self._decode_ids = decode_ids
        bos = {model.bos_id} if model.bos_id is not None else set()
        self._vocabulary = Vocabulary(
            defined=defined, silent=frozenset({model.pad_id, *model.stop_tokens} | bos)
        )
        self.vocab_size = self._vocabulary.size
        self._bos_name = next((t for t, i in model.special_tokens.items() if i == model.bos_id), None)

    def _trusted(self, text: str) -> list[int]:
        return self._model.encode(text, add_bos=False, add_eos=False)

    def encode(self, text: str) -> list[int]:
        """See the protocol."""
        return [i for piece in self._split(text) for i in self._trusted(piece)]

    def encode_prompt(self, text: str, prefill: str = "") -> list[int]:
        """See the protocol. A text that already starts with the BOS token's spelling gets no second one."""
        start = []
        if self._bos_name is not None:
            start = [self._model.bos_id]
            text = text.removeprefix(self._bos_name)
        pieces = self._split(text)
        pieces[-1] += prefill
        return start + [i for piece in pieces for i in self._trusted(piece)]

    def render_chat(self, messages: list[dict[str, str]], prefill: str = "") -> list[int]:
        """See the protocol. The format is torchtune's, which adds no system message of its own."""
        turns = [Message(role=m["role"], content=self._content(m["content"])) for m in messages]
        # An empty assistant turn without its end token is the header that asks for an answer.
        turns.append(Message(role="assistant", content=""))
        return self._chat_ids(turns) + self._trusted(prefill)

    def _content(self, text: str) -> list[dict[str, Any]]:
        return [{"type": "text", "content": piece} for piece in self._split(text)]

    def decode(self, ids: Sequence[int]) -> str:
        """See the protocol."""
        return self._decode_ids(self._vocabulary.audible(ids))

    def is_defined(self, token_id: int) -> bool:
        """See the protocol."""
        return self._vocabulary.is_defined(token_id)

    def undefined_ids(self, num_logits: int) -> list[int]:
        """See the protocol."""
        return self._vocabulary.undefined_ids(num_logits)


def llama3_tokenizer(path: str) -> TorchtuneTokenizer:
    """Llama 3's tiktoken tokenizer with torchtune's table of special tokens and its chat format.

    The table leaves 128011 undefined, and its highest id, 128256, lies beyond the model's logits. The
    chat format has no dated system header, unlike Llama 3.2's Hugging Face template: take
    :func:`grpo.models.tokenizers.hf_tokenizer` for that one.

    Args:
        path: the ``tokenizer.model`` file.

    Raises:
        ConfigError: the file is missing or not a tiktoken file.
    """
    file = _existing_file("path", path)
    try:
        with _no_tiktoken_cache():
            model = llama3.llama3_tokenizer(str(file))
    except ValueError as error:
        raise ConfigError(f"{file}: not a tiktoken file: {error}") from error
    encoding = model.tt_model.tt_model
    return TorchtuneTokenizer(
        model,
        defined=frozenset(_tiktoken_ids(encoding)),
        split=lambda text: [text],  # torchtune lets tiktoken see no special token in a text
        chat_ids=lambda turns: model.tokenize_messages(turns, add_end_tokens=False)[0],
        decode_ids=encoding.decode,
    )


def qwen2_5_tokenizer(path: str, merges_file: str) -> TorchtuneTokenizer:
    """Qwen 2.5's tokenizer from ``vocab.json`` and ``merges.txt``, in torchtune's chat format.

    Unlike Qwen's Hugging Face template it adds no system message of its own. Ids from 151665 to the
    model's last logit are undefined. Its encoder is pure Python: for large datasets
    :func:`grpo.models.tokenizers.hf_tokenizer` is faster.

    Args:
        path: the ``vocab.json`` file.
        merges_file: the ``merges.txt`` file.

    Raises:
        ConfigError: a file is missing or invalid.
    """
    file = _existing_file("path", path)
    merges = _existing_file("merges_file", merges_file)
    try:
        model = qwen2_5.qwen2_5_tokenizer(str(file), str(merges))
    except ValueError as error:
        raise ConfigError(f"{file}: not a vocab.json: {error}") from error
    control = ControlTokens(model.special_tokens)

    def split(text: str) -> list[str]:
        # Its encode normalises before it looks for control tokens: cut what it will look at.
        return control.split(unicodedata.normalize("NFC", text))

    return TorchtuneTokenizer(
        model,
        defined=frozenset({*model.encoder.values(), *model.special_tokens.values()}),
        split=split,
        chat_ids=lambda turns: model.tokenize_messages(turns, add_eos=False)[0],
        decode_ids=model.decode,
    )


def _check_llama3_tokenizer(path: str, **_: Any) -> None:
    _existing_file("path", path)


def _check_qwen2_5_tokenizer(path: str, merges_file: str, **_: Any) -> None:
    _existing_file("path", path)
    _existing_file("merges_file", merges_file)


llama3_tokenizer.check = _check_llama3_tokenizer
qwen2_5_tokenizer.check = _check_qwen2_5_tokenizer


def _existing_file(argument: str, path: str) -> Path:
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise ConfigError(f"{argument}: {path} does not exist or is no file")
    return file


@contextmanager
def _no_tiktoken_cache() -> Iterator[None]:
    """Read the file that is there: tiktoken keeps a copy by path, even after the file is replaced."""
    before = os.environ.get("TIKTOKEN_CACHE_DIR")
    os.environ["TIKTOKEN_CACHE_DIR"] = ""
    try:
        yield
    finally:
        if before is None:
            del os.environ["TIKTOKEN_CACHE_DIR"]
        else:
            os.environ["TIKTOKEN_CACHE_DIR"] = before


def _tiktoken_ids(encoding: Encoding) -> Iterator[int]:
    """The ids that tiktoken can decode; it tells the others by a KeyError only."""
    for token_id in range(encoding.n_vocab):
        try:
            encoding.decode_single_token_bytes(token_id)
        except KeyError:
            continue
        yield token_id
