from __future__ import annotations

import importlib.util

import pytest
import reasoning_gym

from grpo.config.errors import ConfigError
from grpo.rewards import ReasoningGymScorer


def scored(sample, reward, text, name="chain_sum", **config):
    entry = reasoning_gym.create_dataset(name, seed=3, size=1, **config)[0]
    text = text.replace("GOLD", entry["answer"])
    return reward(sample(text, metadata={"reasoning_gym": {"name": name, "entry": entry}}))


def test_the_generators_own_verifier_judges_the_tag(sample):
    reward = ReasoningGymScorer()
    assert scored(sample, reward, "<answer> GOLD </answer>") == 1.0
    assert scored(sample, reward, "<answer>no</answer>") == 0.0
    assert scored(sample, reward, "GOLD") == 0.0
    assert scored(sample, reward, "<answer>GOLD") == 0.0


def test_a_verifier_may_accept_another_answer_than_its_own(sample):
    """Countdown has many solutions: the reference with its sum turned round is one."""
    entry = reasoning_gym.create_dataset("countdown", seed=3, size=1)[0]
    metadata = {"reasoning_gym": {"name": "countdown", "entry": entry}}
    reward = ReasoningGymScorer()
    expression = f"0*({entry['answer']}) + ({entry['answer']})"
    assert reward(sample(f"<answer>({entry['answer']})</answer>", metadata=metadata)) == 1.0
    assert reward(sample(f"<answer>{expression}</answer>", metadata=metadata)) < 1.0


def test_partial_credit_is_raw_unless_there_is_a_threshold(sample):
    raw = scored(sample, ReasoningGymScorer(), "<answer>It is GOLD.</answer>")
    assert 0.0 < raw < 1.0
    assert scored(sample, ReasoningGymScorer(threshold=1.0), "<answer>It is GOLD.</answer>") == 0.0
    assert scored(sample, ReasoningGymScorer(threshold=1.0), "<answer>GOLD</answer>") == 1.0


def test_other_places_of_the_answer(sample):
    assert scored(sample, ReasoningGymScorer(extract="last_number"), "So it is GOLD.") == 1.0


def test_a_task_of_another_kind_is_an_error_and_no_zero(sample):
    with pytest.raises(ValueError, match="t0.*reasoning_gym"):
        ReasoningGymScorer()(sample("<answer>7</answer>", "7"))


def test_an_unknown_generator_is_an_error(sample):
    with pytest.raises(ValueError, match="chian_sum"):
        ReasoningGymScorer()(
            sample("<answer>7</answer>", metadata={"reasoning_gym": {"name": "chian_sum", "entry": {}}})
        )


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install reasoning-gym"):
        ReasoningGymScorer()


@pytest.mark.parametrize("kwargs", [{"threshold": 0.0}, {"threshold": 1.5}])
def test_arguments_that_cannot_be_are_refused(kwargs):
    with pytest.raises(ConfigError, match="threshold: "):
        ReasoningGymScorer.check(**kwargs)
