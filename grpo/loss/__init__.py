"""Losses: one objective with separate axes, and the published presets of it."""

from grpo.loss.objective import PolicyObjective, aggregation_weights
from grpo.loss.presets import bnpo_loss, dapo_loss, dr_grpo_loss, grpo_loss

__all__ = [
    "PolicyObjective",
    "aggregation_weights",
    "bnpo_loss",
    "dapo_loss",
    "dr_grpo_loss",
    "grpo_loss",
]
