"""Chat templates as Hugging Face tokenizers carry them: Jinja, run in a sandbox.

A template sees what ``transformers.PreTrainedTokenizer.apply_chat_template`` shows it: the messages,
``add_generation_prompt``, the named special tokens, ``raise_exception``, ``strftime_now`` and a
``tojson`` filter that does not escape HTML.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from grpo.config.errors import ConfigError


class _GenerationBlock(Extension):
    """``{% generation %}`` marks the assistant's text for training masks; here it is only its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def compile_chat_template(
    source: str, special_tokens: Mapping[str, str], where: str
) -> Callable[[list[dict[str, str]]], str]:
    """A function that renders messages, followed by the header of the assistant's turn.

    Args:
        source: the template.
        special_tokens: ``bos_token`` and the like, by name.
        where: the file the template stands in, for error messages.

    Raises:
        ConfigError: the template is not valid Jinja; when called, it refuses the messages.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    try:
        template = environment.from_string(source)
    except jinja2.TemplateError as error:
        raise ConfigError(f"{where}: invalid chat template: {error}") from error

    def render(messages: list[dict[str, str]]) -> str:
        try:
            return template.render(
                messages=messages, tools=None, documents=None, add_generation_prompt=True, **special_tokens
            )
        except jinja2.TemplateError as error:
            raise ConfigError(f"{where}: the chat template refuses these messages: {error}") from error

    return render


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)
