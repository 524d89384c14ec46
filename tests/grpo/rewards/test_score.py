from __future__ import annotations

import math

import pytest

from grpo.config.errors import ConfigError
from grpo.rewards import Reward, RewardError, WeightedReward, score
from grpo.types import Sample, mean_of_present


def reads_text(sample: Sample) -> float | None:
    """The number in the text; abstains on "none", fails on any other word."""
    return None if sample.text == "none" else float(sample.text)


def one(sample: Sample) -> float:
    return 1.0


def named(reward: Reward, name: str = "r", **kwargs: object) -> WeightedReward:
    return WeightedReward(name=name, reward=reward, **kwargs)


def test_totals_are_weighted_sums_in_the_order_of_the_rollouts(rollouts):
    scored = score(
        rollouts(["0.5", "2", "-1"]),
        [named(reads_text, "text", weight=2.0, success=True), named(one, "one", weight=0.25)],
    )
    assert scored.rewards == [1.25, 4.25, -1.75]
    assert scored.components == {"text": [0.5, 2.0, -1.0], "one": [1.0, 1.0, 1.0]}
    assert scored.success == [False, True, False]
    assert scored.errors == 0


def test_each_reward_is_called_once_for_each_sample_in_order(rollouts):
    seen = []

    def spy(sample: Sample) -> float:
        seen.append((sample.task.id, sample.text, sample.num_tokens))
        return 0.0

    score(rollouts(["a", "b"], prefill="<think>"), [named(spy)])
    assert seen == [("task-0", "<think>a", 2), ("task-1", "<think>b", 2)]


def test_adv_08_a_sample_that_cannot_be_judged_has_no_reward(rollouts):
    """Case: rewards [1, None, 0, None] reach the advantages as they are, not as zeros."""
    scored = score(rollouts(["1", "none", "0", "none"]), [named(reads_text, success=True)])
    assert scored.rewards == [1.0, None, 0.0, None]
    assert scored.success == [True, None, False, None]
    assert scored.errors == 0


def test_one_component_that_abstains_leaves_the_sample_without_a_total(rollouts):
    scored = score(rollouts(["none", "1"]), [named(one, "one", success=True), named(reads_text, "text")])
    assert scored.rewards == [None, 2.0]
    assert scored.components["one"] == [1.0, 1.0]
    assert scored.success == [True, True]


def test_adv_16_the_mean_is_over_the_values_that_exist():
    assert mean_of_present([0.4, None, 0.8, None, 0.9]) == pytest.approx(0.7)
    assert mean_of_present([None]) is None


def test_ext_37_success_is_one_reward_and_a_rate(rollouts):
    scored = score(rollouts(["1"]), [named(one, "has_thoughts"), named(one, "correct", success=True)])
    assert mean_of_present(scored.success) == 1.0
    assert scored.rewards == [2.0]


def test_success_is_not_judged_where_no_reward_is_marked(rollouts):
    assert score(rollouts(["1"]), [named(one)]).success == [None]


def test_a_reward_that_raises_does_not_end_the_run_and_is_no_zero(rollouts):
    scored = score(
        rollouts(["1", "oops", "0", "0"]), [named(reads_text, success=True)], max_error_fraction=0.25
    )
    assert scored.rewards == [1.0, None, 0.0, 0.0]
    assert scored.success == [True, None, False, False]
    assert scored.errors == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "1.0", [1.0]])
def test_what_is_no_finite_number_is_an_error(rollouts, value):
    scored = score(rollouts(["x"]), [named(lambda sample: value)], max_error_fraction=1.0)
    assert scored.rewards == [None]
    assert scored.errors == 1


def test_truth_values_and_integers_are_numbers(rollouts):
    scored = score(rollouts(["x"]), [named(lambda s: True, "a", success=True), named(lambda s: 2, "b")])
    assert scored.rewards == [3.0]
    assert scored.success == [True]


def test_over_the_fraction_the_run_stops_with_the_first_error_shown(rollouts):
    with pytest.raises(RewardError) as raised:
        score(rollouts(["1", "oops", "argh", "1"]), [named(reads_text, "mine")], max_error_fraction=0.25)
    message = str(raised.value)
    assert "'mine'" in message and "'task-1'" in message and "ValueError" in message and "'oops'" in message
    assert isinstance(raised.value.__cause__, ValueError)


def test_the_fraction_is_of_all_calls(rollouts):
    """Two errors in eight calls stand at a limit of a quarter, though half of one reward's calls failed."""
    rewards = [named(reads_text, "text"), named(one, "one")]
    assert score(rollouts(["1", "a", "b", "1"]), rewards, max_error_fraction=0.25).errors == 2


def test_a_fraction_of_zero_stops_at_the_first_error(rollouts):
    with pytest.raises(RewardError):
        score(rollouts(["a"] + ["1"] * 99), [named(reads_text)], max_error_fraction=0.0)


def test_an_interrupt_passes_through(rollouts):
    def interrupted(sample: Sample) -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score(rollouts(["x"]), [named(interrupted)], max_error_fraction=1.0)


@pytest.mark.parametrize(
    ("rewards", "says"),
    [
        ([], "no reward"),
        ([named(one), named(one)], "distinct"),
        ([named(one, "a", success=True), named(one, "b", success=True)], "success"),
    ],
)
def test_a_list_of_rewards_that_cannot_be_is_refused(rollouts, rewards, says):
    with pytest.raises(ValueError, match=says):
        score(rollouts(["x"]), rewards)


def test_a_weight_must_be_finite_and_a_name_not_empty():
    with pytest.raises(ConfigError, match="weight"):
        named(one, weight=math.nan)
    with pytest.raises(ConfigError, match="name"):
        named(one, "")
