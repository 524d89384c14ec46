"""Prompt templates: a task to prompt ids, and the text already put at the start of the answer.

Called as ``template(task, tokenizer)``. The prefill is returned too because rewards judge the whole
assistant's turn: what the template wrote and what was sampled. What comes from a task is neutralised by
the tokenizer (a question cannot forge a control token); a prefill comes from the configuration and is not.
"""

from __future__ import annotations

import string
from typing import Protocol

from grpo.config.errors import ConfigError, nearest
from grpo.types import Task

_FIELDS = ("question",)

THINK_ANSWER_TEMPLATE = (
    "Below, a User poses a problem and an Assistant solves it. The Assistant first works the problem out "
    "between <think> and </think>, then gives the final result, and nothing else, between <answer> and "
    "</answer>: <think> the reasoning </think> <answer> the result </answer>.\n"
    "User: {question}\nAssistant:\n"
)


class PromptTokenizer(Protocol):
    """What templates use of a tokenizer."""

    def encode_prompt(self, text: str, prefill: str = "") -> list[int]:
        """Plain text to ids, BOS once where the tokenizer uses it."""
        ...

    def render_chat(self, messages: list[dict[str, str]], prefill: str = "") -> list[int]:
        """Messages to ids, up to the start of the assistant's turn and ``prefill``."""
        ...


class PromptTemplate(Protocol):
    """A task to ``(prompt ids, prefill)``."""

    def __call__(self, task: Task, tokenizer: PromptTokenizer) -> tuple[list[int], str]: ...


class ChatPrompt:
    """The tokenizer's chat template, with the question as the user's message.

    Args:
        system: the system message; None leaves it to the chat template, which may have one of its own.
        instruction: the user's message, with ``{question}`` in it; None is the question alone.
        prefill: the start of the assistant's turn.

    Raises:
        ConfigError: an instruction without ``{question}`` or with another field.
    """

    def __init__(self, system: str | None = None, instruction: str | None = None, prefill: str = "") -> None:
        self.check(system, instruction, prefill)
        self._system = system
        self._instruction = "{question}" if instruction is None else instruction
        self._prefill = prefill

    @staticmethod
    def check(system: str | None = None, instruction: str | None = None, prefill: str = "") -> None:
        """Static check of the arguments."""
        if instruction is not None:
            _check_template("ChatPrompt instruction", instruction)

    def __call__(self, task: Task, tokenizer: PromptTokenizer) -> tuple[list[int], str]:
        """Prompt ids and the prefill."""
        messages = [] if self._system is None else [{"role": "system", "content": self._system}]
        messages.append({"role": "user", "content": self._instruction.format(question=task.question)})
        return tokenizer.render_chat(messages, self._prefill), self._prefill


class ThinkAnswerPrompt:
    """A plain-text dialogue that asks for ``<think>`` and ``<answer>`` tags, for base models.

    The form is that of DeepSeek-R1-Zero (https://arxiv.org/abs/2501.12948, table 1) in other words. The
    answer starts behind the opening ``<think>`` unless ``prefill`` says otherwise.

    Args:
        prefill: the start of the assistant's turn.
        template: the dialogue, with ``{question}`` in it.

    Raises:
        ConfigError: a template without ``{question}`` or with another field.
    """

    def __init__(self, prefill: str = "<think>", template: str = THINK_ANSWER_TEMPLATE) -> None:
        self._prompt = RawPrompt(template, prefill)

    @staticmethod
    def check(prefill: str = "<think>", template: str = THINK_ANSWER_TEMPLATE) -> None:
        """Static check of the arguments."""
        _check_template("ThinkAnswerPrompt template", template)

    def __call__(self, task: Task, tokenizer: PromptTokenizer) -> tuple[list[int], str]:
        """Prompt ids and the prefill."""
        return self._prompt(task, tokenizer)


class RawPrompt:
    """Plain text, without a chat template.

    Args:
        template: the text, with ``{question}`` in it; literal braces are written ``{{`` and ``}}``.
        prefill: the start of the assistant's answer.

    Raises:
        ConfigError: a template without ``{question}`` or with another field.
    """

    def __init__(self, template: str = "{question}", prefill: str = "") -> None:
        self.check(template, prefill)
        self._template = template
        self._prefill = prefill

    @staticmethod
    def check(template: str = "{question}", prefill: str = "") -> None:
        """Static check of the arguments."""
        _check_template("RawPrompt template", template)

    def __call__(self, task: Task, tokenizer: PromptTokenizer) -> tuple[list[int], str]:
        """Prompt ids and the prefill."""
        text = self._template.format(question=task.question)
        return tokenizer.encode_prompt(text, self._prefill), self._prefill


def _check_template(where: str, template: str) -> None:
    if not isinstance(template, str):
        raise ConfigError(f"{where}: expected text, got {template!r}")
    hint = "literal braces are written {{ and }}"
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ConfigError(f"{where}: {error}; {hint}") from error
    fields = []
    for _, field, spec, conversion in parsed:
        if field is None:
            continue
        if field not in _FIELDS:
            raise ConfigError(f"{where}: unknown field {{{field}}}{nearest(field, _FIELDS)}; {hint}")
        if spec or conversion:
            raise ConfigError(f"{where}: field {{{field}}} takes no format")
        fields.append(field)
    if "question" not in fields:
        raise ConfigError(f"{where}: the field {{question}} is missing")
