"""The rewards of a config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grpo.config import REWARD_EXTRAS, instantiate_callable, split_extras
from grpo.config.checks import reward_name
from grpo.rewards.protocol import WeightedReward


def build_rewards(nodes: Sequence[Mapping[str, Any]]) -> list[WeightedReward]:
    """Each item's component, with the ``name``, ``weight`` and ``success`` that stand beside it."""
    rewards = []
    for node in nodes:
        component, extras = split_extras(node, REWARD_EXTRAS)
        rewards.append(
            WeightedReward(
                **{**extras, "name": reward_name(node), "reward": instantiate_callable(component, "sample")}
            )
        )
    return rewards
