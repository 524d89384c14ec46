from __future__ import annotations

import pytest

from grpo.config.errors import ConfigError
from grpo.rewards import TagFormat
from grpo.types import Sample


def test_ext_22_no_tag_no_format_reward(sample):
    assert TagFormat()(sample("I do not know.", "7")) == 0.0


def test_ext_26_newlines(sample):
    assert TagFormat()(sample("<think>\na\nb\n</think>\n<answer>9</answer>")) == 1.0


def test_ext_28_each_tag_exactly_once(sample):
    assert TagFormat()(sample("<think>a</think><think>b</think><answer>1</answer>")) == 0.0


def test_ext_29_the_prefill_counts(rollouts):
    (turn,) = rollouts(["a</think><answer>1</answer>"], prefill="<think>\n").samples()
    assert TagFormat()(turn) == 1.0
    assert TagFormat()(Sample(task=turn.task, text="a</think><answer>1</answer>")) == 0.0


def test_ext_31_a_stop_token_at_the_end_is_no_text(sample):
    text = "<think>a</think><answer>1</answer><|im_end|>"
    assert TagFormat()(sample(text)) == 1.0
    assert TagFormat(end_markers=[])(sample(text)) == 0.0
    assert TagFormat(end_markers=["[END]"])(sample("<think>a</think><answer>1</answer>[END]\n")) == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "<answer>1</answer><think>a</think>",
        "<think>a<answer>1</answer></think>",
        "</think>a<think><answer>1</answer>",
        "<think>a<think>b</think><answer>1</answer>",
        "<think>a</think><answer>1",
        "<think>a</think>",
        "",
    ],
)
def test_tags_stand_in_order_and_closed(sample, text):
    assert TagFormat()(sample(text)) == 0.0
    assert TagFormat(allow_text_outside=True)(sample(text)) == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "Well. <think>a</think><answer>1</answer>",
        "<think>a</think>so<answer>1</answer>",
        "<think>a</think><answer>1</answer> bye",
    ],
)
def test_text_outside_needs_leave(sample, text):
    assert TagFormat()(sample(text)) == 0.0
    assert TagFormat(allow_text_outside=True)(sample(text)) == 1.0


def test_other_tags(sample):
    assert TagFormat(tags=["answer"])(sample("<answer>1</answer>")) == 1.0
    assert TagFormat(tags=["plan", "code"])(sample("<plan>p</plan> <code>c</code>")) == 1.0


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"tags": []}, "tags: "),
        ({"tags": "think"}, "tags: "),
        ({"tags": ["think", "think"]}, "twice"),
        ({"tags": ["<think>"]}, "tags: "),
        ({"end_markers": [""]}, "end_markers: "),
    ],
)
def test_arguments_that_cannot_be_are_refused(kwargs, says):
    with pytest.raises(ConfigError, match=says):
        TagFormat.check(**kwargs)
