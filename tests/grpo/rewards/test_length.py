from __future__ import annotations

import math

import pytest

from grpo.config.errors import ConfigError
from grpo.rewards import CosineLength, ExactAnswer, SoftOverlong


def right(sample):
    return 1.0


def test_ext_32_the_cosine_ends_at_the_limit(sample):
    reward = CosineLength(right, max_tokens=1000, correct_short=1.0, correct_long=0.5)
    values = [reward(sample("", num_tokens=n)) for n in (0, 500, 1000, 1500, 2000)]
    assert values == pytest.approx([1.0, 0.75, 0.5, 0.5, 0.5], abs=1e-12)


def test_a_wrong_answer_loses_less_the_longer_it_is(sample):
    reward = CosineLength(ExactAnswer(), max_tokens=100, wrong_short=-1.0, wrong_long=-0.5)
    values = [reward(sample("<answer>1</answer>", "2", num_tokens=n)) for n in (0, 50, 100)]
    assert values == pytest.approx([-1.0, -0.75, -0.5])
    assert reward(sample("<answer>2</answer>", "2", num_tokens=0)) == pytest.approx(1.0)


def test_length_is_not_judged_where_correctness_is_not(sample):
    assert CosineLength(lambda s: None, max_tokens=10)(sample("")) is None


def test_ext_34_soft_overlong_is_continuous_at_both_ends(sample):
    reward = SoftOverlong(max_tokens=20, cache_tokens=4)
    values = [reward(sample("", num_tokens=n)) for n in (15, 16, 17, 18, 19, 20, 21)]
    assert values == [0, 0, -0.25, -0.5, -0.75, -1, -1]


@pytest.mark.parametrize(
    ("component", "kwargs", "says"),
    [
        (CosineLength, {"correctness": right, "max_tokens": 0}, "max_tokens: "),
        (CosineLength, {"correctness": right, "max_tokens": 9, "wrong_long": math.nan}, "wrong_long: "),
        (SoftOverlong, {"max_tokens": 20, "cache_tokens": 0}, "cache_tokens: "),
        (SoftOverlong, {"max_tokens": 20, "cache_tokens": 21}, "cache_tokens: "),
        (SoftOverlong, {"max_tokens": 2.5, "cache_tokens": 1}, "max_tokens: "),
    ],
)
def test_arguments_that_cannot_be_are_refused(component, kwargs, says):
    with pytest.raises(ConfigError, match=says):
        component.check(**kwargs)
