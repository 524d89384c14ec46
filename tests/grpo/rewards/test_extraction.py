from __future__ import annotations

import doctest
import importlib

import pytest

from grpo.config.errors import ConfigError
from grpo.rewards import AnswerFinder, last_boxed, last_hash, parse_number, strip_end_markers, tag_content
from grpo.rewards.extraction import cut_at_stop


@pytest.mark.parametrize(
    ("text", "extract", "value"),
    [("#### 1,234", "hash", 1234), ("\\boxed{6,200}", "boxed", 6200), ("\\boxed{7{,}300}", "boxed", 7300)],
)
def test_ext_01_thousands_separator(text, extract, value):
    assert parse_number(AnswerFinder(extract)(text)) == value
    assert parse_number(AnswerFinder("auto")(text)) == value


def test_ext_07_the_last_marker_wins():
    assert last_hash("Example: #### 5\nNow mine: #### 72") == "72"


def test_ext_07_text_after_a_stop_string_is_no_answer():
    text = "#### 72\n\nQuestion: 2+2?\n#### 4"
    assert AnswerFinder("hash", stop_strings=["Question:"])(text) == "72"
    assert AnswerFinder("hash")(text) == "4"
    assert cut_at_stop("abc", []) == "abc"


def test_ext_07_an_incomplete_marker_is_none():
    assert last_hash("#### 5\n and then ####") == "5"
    assert last_hash("##### a heading") is None


def test_ext_08_nested_braces():
    assert last_boxed("\\boxed{\\frac{3}{4}}") == "\\frac{3}{4}"
    assert last_boxed("\\boxed{\\{1,2\\}}.") == "\\{1,2\\}"


@pytest.mark.parametrize(("text", "value"), [("so \\boxed{61}. Final: \\boxed{61}", 61), ("\\boxed{007}", 7)])
def test_ext_10_repeated_boxed(text, value):
    assert parse_number(last_boxed(text)) == value


@pytest.mark.parametrize(
    ("text", "content"),
    [("the answer is $\\boxed 2$.", "2"), ("$\\boxed\\pi$", "\\pi"), ("\\boxed $", None), ("\\boxed", None)],
)
def test_ext_11_boxed_without_braces(text, content):
    assert last_boxed(text) == content


def test_ext_13_fbox():
    assert last_boxed("\\fbox{7}") == "7"
    assert last_boxed("\\boxed{1} or rather \\fbox{ 7 }") == "7"


def test_ext_14_unclosed_brace():
    assert last_boxed("... \\boxed{\\frac{1}{2}") is None
    assert last_boxed("\\boxed{3}, no: \\boxed{\\frac{1}{2}") is None


def test_ext_25_the_last_opened_tag_was_cut():
    text = "Example: <answer>Rome</answer>. Mine: <answer>Lis"
    assert tag_content(text, "answer") is None
    assert AnswerFinder("auto")(text) is None


def test_an_answer_tag_holds_stripped_text_over_lines():
    assert tag_content("<answer>\n 4\n5 </answer>", "answer") == "4\n5"
    assert tag_content("4</answer>", "answer") is None
    assert tag_content("no tag", "answer") is None


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so \\boxed{1}, #### 2, <answer>3</answer>", "3"),
        ("#### 2 and \\boxed{1}", "1"),
        ("6 #### 2", "2"),
        ("that makes 6.", "6"),
        ("<answer>3", None),
        ("nothing", None),
    ],
)
def test_auto_takes_the_first_way_that_left_a_trace(text, answer):
    assert AnswerFinder("auto")(text) == answer


def test_end_markers_are_stripped_and_tags_kept():
    assert strip_end_markers("a</answer><|im_end|>\n<|endoftext|>") == "a</answer>"
    assert AnswerFinder("hash")("#### 72<|im_end|>") == "72"


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"extract": "boxd"}, "did you mean 'boxed'"),
        ({"extract": "tag", "tag": "<answer>"}, "tag: "),
        ({"extract": "tag", "stop_strings": "Question"}, "stop_strings: "),
        ({"extract": "tag", "stop_strings": [""]}, "stop_strings: "),
    ],
)
def test_arguments_that_cannot_be_are_refused(kwargs, says):
    with pytest.raises(ConfigError, match=says):
        AnswerFinder(**kwargs)


@pytest.mark.parametrize("name", ["extraction", "numeric", "protocol"])
def test_examples_in_docstrings_hold(name):
    result = doctest.testmod(importlib.import_module(f"grpo.rewards.{name}"))
    assert result.attempted > 0 and result.failed == 0
