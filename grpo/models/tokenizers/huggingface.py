"""Any ``tokenizer.json`` with its chat template, without the ``transformers`` library."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from grpo.config.errors import ConfigError
from grpo.models.locations import resolve_checkpoint_dir
from grpo.models.tokenizers.chat_template import compile_chat_template
from grpo.models.tokenizers.vocabulary import ControlTokens, Vocabulary

# Placed inside a spelled control token, this token cuts it in two and is removed after encoding. One
# pass over the whole text keeps what a tokenizer does at the start of a text (a prefix space) there.
_CUT = "\ue000cut\uf8ff"
_NAMED_TOKENS = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))


class HFTokenizer:
    """A tokenizer of the ``tokenizers`` library with stop ids, pad and chat template.

    Built by :func:`hf_tokenizer`; satisfies :class:`grpo.models.tokenizers.protocol.Tokenizer`.
    """

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        *,
        named: Mapping[str, str],
        stop_ids: tuple[int, ...],
        pad_id: int,
        add_bos: bool | None,
        render: Callable[[list[dict[str, str]]], str] | None,
        where: Path,
    ) -> None:
        self.stop_ids = stop_ids
        self.pad_id = pad_id
        self._tokenizer = tokenizer
        self._render = render
        self._where = where
        bos = named.get("bos_token")
        bos_id = tokenizer.token_to_id(bos) if bos else None
        self._vocabulary = Vocabulary(
            defined=frozenset(tokenizer.get_vocab(with_added_tokens=True).values()),
            silent=frozenset({pad_id, *stop_ids} | ({bos_id} if bos_id is not None else set())),
        )
        self.vocab_size = self._vocabulary.size
        special = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]
        silent = [tokenizer.id_to_token(i) for i in self._vocabulary.silent]
        self._control = ControlTokens([*special, *silent])
        if add_bos is None and bos_id is not None:
            add_bos = tokenizer.encode("a", add_special_tokens=True).ids[:1] == [bos_id]
        self._bos = (bos, bos_id) if add_bos and bos_id is not None else None
        self._cut_id = self._add_cut_token()

    def _add_cut_token(self) -> int:
        self._tokenizer.add_special_tokens([tokenizers.AddedToken(_CUT, special=True, normalized=False)])
        cut_id = self._tokenizer.token_to_id(_CUT)
        if cut_id in self._vocabulary.defined:
            raise ConfigError(f"{self._where}: its ids have gaps, so that id {cut_id} would be given twice")
        return cut_id

    def _neutral(self, text: str) -> str:
        return _CUT.join(self._control.split(text))

    def _ids(self, text: str) -> list[int]:
        try:
            ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        except Exception as error:  # the library raises nothing narrower
            raise ConfigError(f"{self._where}: cannot encode {text[:60]!r}: {error}") from error
        return [i for i in ids if i != self._cut_id]

    def encode(self, text: str) -> list[int]:
        """See the protocol."""
        return self._ids(self._neutral(text))

    def encode_prompt(self, text: str, prefill: str = "") -> list[int]:
        """See the protocol. A text that already starts with the BOS token's spelling gets no second one."""
        if self._bos is None:
            return self._ids(self._neutral(text) + prefill)
        bos, bos_id = self._bos
        return [bos_id, *self._ids(self._neutral(text.removeprefix(bos)) + prefill)]

    def render_chat(self, messages: list[dict[str, str]], prefill: str = "") -> list[int]:
        """See the protocol. BOS comes from the template alone, as in ``apply_chat_template``.

        Raises:
            ConfigError: there is no chat template, or it refuses the messages.
        """
        if self._render is None:
            raise ConfigError(
                f"{self._where}: no chat template (tokenizer_config.json's chat_template or a "
                "chat_template.jinja beside it); use a plain-text prompt such as grpo.data.RawPrompt"
            )
        neutral = [{**message, "content": self._neutral(message["content"])} for message in messages]
        return self._ids(self._render(neutral) + prefill)

    def decode(self, ids: Sequence[int]) -> str:
        """See the protocol."""
        return self._tokenizer.decode(self._vocabulary.audible(ids), skip_special_tokens=False)

    def is_defined(self, token_id: int) -> bool:
        """See the protocol."""
        return self._vocabulary.is_defined(token_id)

    def undefined_ids(self, num_logits: int) -> list[int]:
        """See the protocol."""
        return self._vocabulary.undefined_ids(num_logits)


def hf_tokenizer(path: str) -> HFTokenizer:
    """A Hugging Face tokenizer with its chat template.

    Files beside ``tokenizer.json`` are read where they exist: ``tokenizer_config.json`` (named special
    tokens, each a string or a mapping with ``content``; the chat template, a string or a list of named
    ones), ``chat_template.jinja`` (goes first) and ``generation_config.json`` (``eos_token_id``, one or
    several: all of them stop). Without a pad token the first stop id pads, which is harmless because
    masks are never made from it.

    Args:
        path: a folder with ``tokenizer.json``, the file itself, or ``tiny`` for the embedded model.

    Raises:
        ConfigError: a file is missing or invalid, or nothing says which token ends a turn.
    """
    file = _tokenizer_file(path)
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise ConfigError(f"{file}: not a tokenizer.json: {error}") from error
    # A file may carry the truncation and padding of whoever saved it: prompts are never cut or padded here.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    config = _read_json(file.parent / "tokenizer_config.json")
    named = _named_tokens(config)
    _register(tokenizer, named, file)
    generation = _read_json(file.parent / "generation_config.json")
    stop_ids = _stop_ids(tokenizer, named, generation, file)
    pad = named.get("pad_token")
    return HFTokenizer(
        tokenizer,
        named=named,
        stop_ids=stop_ids,
        pad_id=tokenizer.token_to_id(pad) if pad else stop_ids[0],
        add_bos=config.get("add_bos_token"),
        render=_chat_template(file.parent, config, named),
        where=file,
    )


def _check_hf_tokenizer(path: str, **_: Any) -> None:
    """The files exist and are JSON; the tokenizer itself is not built."""
    folder = _tokenizer_file(path).parent
    _read_json(folder / "tokenizer_config.json")
    _read_json(folder / "generation_config.json")


hf_tokenizer.check = _check_hf_tokenizer


def _tokenizer_file(path: str) -> Path:
    given = resolve_checkpoint_dir(path)
    file = given / "tokenizer.json" if given.is_dir() else given
    if not file.is_file():
        expected = "a tokenizer.json or a folder with one"
        raise ConfigError(f"path: {file} does not exist (expected {expected})")
    return file


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{file}: not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{file}: expected a JSON object, got {type(content).__name__}")
    return content


def _named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    named = {}
    for name in _NAMED_TOKENS:
        token = config.get(name)
        content = token.get("content") if isinstance(token, dict) else token
        if content:
            named[name] = content
    return named


def _register(tokenizer: tokenizers.Tokenizer, named: Mapping[str, str], file: Path) -> None:
    """Make the named tokens special where the file has them as plain vocabulary, as transformers does."""
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    for name, content in named.items():
        if tokenizer.token_to_id(content) is not None:
            if content not in added:
                token = tokenizers.AddedToken(content, special=True, normalized=False)
                tokenizer.add_special_tokens([token])
        elif name in ("bos_token", "eos_token", "pad_token"):
            raise ConfigError(f"{file}: tokenizer_config.json names {name} {content!r}, which is not in it")


def _stop_ids(
    tokenizer: tokenizers.Tokenizer, named: Mapping[str, str], generation: Mapping[str, Any], file: Path
) -> tuple[int, ...]:
    stop = [tokenizer.token_to_id(named["eos_token"])] if "eos_token" in named else []
    listed = generation.get("eos_token_id")
    listed = listed if isinstance(listed, list) else [] if listed is None else [listed]
    for token_id in listed:
        if not isinstance(token_id, int) or tokenizer.id_to_token(token_id) is None:
            raise ConfigError(
                f"{file.parent}/generation_config.json: eos_token_id {token_id!r} is not an id of {file.name}"
            )
    stop_ids = tuple(dict.fromkeys([*stop, *listed]))
    if not stop_ids:
        raise ConfigError(
            f"{file}: nothing says which token ends a turn (expected eos_token in tokenizer_config.json "
            "or eos_token_id in generation_config.json beside it)"
        )
    return stop_ids


def _chat_template(
    folder: Path, config: Mapping[str, Any], named: Mapping[str, str]
) -> Callable[[list[dict[str, str]]], str] | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return compile_chat_template(file.read_text(encoding="utf-8"), named, str(file))
    where = folder / "tokenizer_config.json"
    template = config.get("chat_template")
    if isinstance(template, list):
        by_name = {entry["name"]: entry["template"] for entry in template}
        if "default" not in by_name:
            raise ConfigError(f"{where}: chat_template lists {sorted(by_name)}, expected one named 'default'")
        template = by_name["default"]
    return None if template is None else compile_chat_template(template, named, str(where))
