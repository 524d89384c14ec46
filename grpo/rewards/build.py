"""The rewards of a config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grpo.config import REWARD_EXTRAS, ConfigError, instantiate_callable, split_extras
from grpo.config.checks import reward_name
from grpo.rewards.protocol import WeightedReward


def build_rewards(nodes: Sequence[Mapping[str, Any]]) -> list[WeightedReward]:
    """Each item's component, with the ``name``, ``weight`` and ``success`` that stand beside it."""
    rewards = []
    for node in nodes:
        component, extras = split_extras(node, REWARD_EXTRAS)
        reward = instantiate_callable(component, "sample")
        if not callable(reward):
            raise ConfigError(
                f"rewards: {node['_component_']} makes a {type(reward).__name__}, which cannot be called "
                "with a sample; expected a class with __call__, or a function whose parameter is named "
                "'sample'"
            )
        rewards.append(WeightedReward(**{**extras, "name": reward_name(node), "reward": reward}))
    return rewards
