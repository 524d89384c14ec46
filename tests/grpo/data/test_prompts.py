from __future__ import annotations

import pytest

from grpo.config.errors import ConfigError
from grpo.data import ChatPrompt, RawPrompt, ThinkAnswerPrompt
from grpo.types import Task

TASK = Task(id="0", question="What is {1} + 2?", answer="3")


class Recorder:
    """Remembers what it was asked to encode."""

    def encode_prompt(self, text: str, prefill: str = "") -> list[int]:
        self.text, self.prefill = text, prefill
        return [1]

    def render_chat(self, messages: list[dict[str, str]], prefill: str = "") -> list[int]:
        self.messages, self.prefill = messages, prefill
        return [2]


def test_chat_prompt_default_is_the_question_alone():
    tokenizer = Recorder()
    assert ChatPrompt()(TASK, tokenizer) == ([2], "")
    assert tokenizer.messages == [{"role": "user", "content": "What is {1} + 2?"}]


def test_chat_prompt_with_everything():
    tokenizer = Recorder()
    prompt = ChatPrompt(system="Be short.", instruction=r"{question} Use \boxed{{}}.", prefill="<think>")
    assert prompt(TASK, tokenizer) == ([2], "<think>")
    assert tokenizer.messages == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": r"What is {1} + 2? Use \boxed{}."},
    ]
    assert tokenizer.prefill == "<think>"


def test_think_answer_prompt_prefills_the_opening_tag():
    tokenizer = Recorder()
    assert ThinkAnswerPrompt()(TASK, tokenizer) == ([1], "<think>")
    assert tokenizer.prefill == "<think>"
    assert "User: What is {1} + 2?\n" in tokenizer.text
    for tag in ("<think>", "</think>", "<answer>", "</answer>"):
        assert tag in tokenizer.text


def test_raw_prompt():
    tokenizer = Recorder()
    assert RawPrompt("{question}=")(Task(id="0", question="1+2"), tokenizer) == ([1], "")
    assert tokenizer.text == "1+2="


@pytest.mark.parametrize(
    "check",
    [
        lambda t: ChatPrompt.check(instruction=t),
        lambda t: ThinkAnswerPrompt.check(template=t),
        lambda t: RawPrompt.check(template=t),
        lambda t: RawPrompt(t),
        lambda t: ChatPrompt(instruction=t),
        lambda t: ThinkAnswerPrompt(template=t),
    ],
)
@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{qestion}", "unknown field {qestion} .did you mean 'question'"),
        (r"{question} \boxed{}", "unknown field {}.*literal braces"),
        ("{question", "literal braces"),
        ("{question!r}", "takes no format"),
        ("Solve it.", "{question} is missing"),
        (3, "expected text, got 3"),
    ],
)
def test_bad_templates(check, template, message: str):
    with pytest.raises(ConfigError, match=message):
        check(template)
