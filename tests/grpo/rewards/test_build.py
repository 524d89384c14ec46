"""Rewards from YAML: classes, functions, and what stands beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo.config import ConfigError, TrainConfig, load_config
from grpo.rewards import ExactAnswer, build_rewards
from grpo.types import Sample, Task

MODULE = """
def brevity(sample, limit=10):
    return float(sample.num_tokens < limit)

def make(factor):
    return lambda sample: factor * sample.num_tokens
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_rewards.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)


SAMPLE = Sample(task=Task(id="1", question="?", answer="7"), text="<answer>7</answer>", num_tokens=12)


def test_name_weight_and_success_stand_beside_the_component() -> None:
    plain, named = build_rewards(
        [
            {"_component_": "grpo.rewards.ExactAnswer", "success": True},
            {
                "_component_": "grpo.rewards.ExactAnswer",
                "extract": "last_number",
                "weight": 0.5,
                "name": "loose",
            },
        ]
    )
    assert (plain.name, plain.weight, plain.success) == ("ExactAnswer", 1.0, True)
    assert (named.name, named.weight, named.success) == ("loose", 0.5, False)
    assert isinstance(plain.reward, ExactAnswer) and plain.reward(SAMPLE) == 1.0


def test_a_plain_function_of_a_sample_is_a_reward(own_module: None) -> None:
    default, bound, made = build_rewards(
        [
            {"_component_": "own_rewards.brevity"},
            {"_component_": "own_rewards.brevity", "limit": 20, "name": "lenient"},
            {"_component_": "own_rewards.make", "factor": 2},
        ]
    )
    assert (default.reward(SAMPLE), bound.reward(SAMPLE), made.reward(SAMPLE)) == (0.0, 1.0, 24)


def test_a_functions_arguments_are_checked_like_a_components(own_module: None) -> None:
    def load(reward: str) -> TrainConfig:
        return load_config("tiny/full_single_device", [f"rewards.1={reward}"], TrainConfig)

    load("{_component_: own_rewards.brevity, limit: 3}")
    with pytest.raises(ConfigError, match=r"rewards\.1\.limt.*did you mean 'limit'"):
        load("{_component_: own_rewards.brevity, limt: 3}")
    with pytest.raises(ConfigError, match=r"rewards\.1\.sample: the recipe itself passes"):
        load("{_component_: own_rewards.brevity, sample: 3}")
