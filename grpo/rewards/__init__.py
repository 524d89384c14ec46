"""Rewards: what a completion is worth, and what of that could be judged at all."""

from grpo.rewards.answer import AnswerFinder
from grpo.rewards.build import build_rewards
from grpo.rewards.exact import ExactAnswer
from grpo.rewards.extraction import END_MARKERS, last_boxed, last_hash, strip_end_markers, tag_content
from grpo.rewards.format import TagFormat
from grpo.rewards.length import CosineLength, SoftOverlong
from grpo.rewards.math import MathCorrectness
from grpo.rewards.numeric import last_number, numbers_equal, parse_number
from grpo.rewards.protocol import Reward, WeightedReward
from grpo.rewards.reasoning_gym import ReasoningGymScorer
from grpo.rewards.score import RewardError, score

__all__ = [
    "END_MARKERS",
    "AnswerFinder",
    "CosineLength",
    "ExactAnswer",
    "MathCorrectness",
    "ReasoningGymScorer",
    "Reward",
    "RewardError",
    "SoftOverlong",
    "TagFormat",
    "WeightedReward",
    "build_rewards",
    "last_boxed",
    "last_hash",
    "last_number",
    "numbers_equal",
    "parse_number",
    "score",
    "strip_end_markers",
    "tag_content",
]
