from __future__ import annotations

import pytest

from grpo.config.errors import ConfigError
from grpo.rewards import ExactAnswer


@pytest.mark.parametrize(
    ("text", "answer", "value"),
    [
        ("<answer>18.00</answer>", "18", 1.0),
        ("<answer>$1,800</answer>", "1800", 1.0),
        ("<answer> 7 </answer>", "7", 1.0),
        ("<answer>Lisbon</answer>", "Lisbon", 1.0),
        ("<answer>lisbon</answer>", "Lisbon", 0.0),
        ("<answer>7 or 8</answer>", "7", 0.0),
        ("the answer is 7", "7", 0.0),
        ("<answer>7", "7", 0.0),
    ],
)
def test_the_tag_holds_the_answer_exactly(sample, text, answer, value):
    assert ExactAnswer()(sample(text, answer)) == value


def test_ext_22_no_tag_no_credit(sample):
    assert ExactAnswer()(sample("I do not know.", "7")) == 0.0


def test_ext_23_twelve_is_not_two(sample):
    assert ExactAnswer()(sample("<think>x</think><answer>12</answer>", "2")) == 0.0


def test_other_places_of_the_answer(sample):
    assert ExactAnswer(extract="last_number")(sample("3 + 4 is 7.", "7")) == 1.0
    assert ExactAnswer(extract="boxed")(sample("\\boxed{7}", "7")) == 1.0
    assert ExactAnswer(extract="hash")(sample("#### 7\nbye 8", "7")) == 1.0
    assert ExactAnswer(tag="result")(sample("<result>7</result>", "7")) == 1.0


def test_a_task_without_an_answer_is_an_error_and_no_zero(sample):
    with pytest.raises(ValueError, match="t0.*no reference answer"):
        ExactAnswer()(sample("<answer>7</answer>", None))


def test_the_static_check_refuses_what_the_constructor_does():
    ExactAnswer.check(tag="answer")
    with pytest.raises(ConfigError, match="tag: "):
        ExactAnswer.check(tag="")
