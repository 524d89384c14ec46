"""Configs: schema, overrides, checks of every key and component, and their construction."""

from grpo.config.components import check_component, instantiate, instantiate_callable, split_extras
from grpo.config.distributed_schema import DistributedConfig
from grpo.config.errors import ConfigError, nearest
from grpo.config.parse import config_yaml, load_config, parse
from grpo.config.registry import RECIPES, find_config
from grpo.config.schema import REWARD_EXTRAS, RewardExtras, TrainConfig

__all__ = [
    "RECIPES",
    "REWARD_EXTRAS",
    "ConfigError",
    "DistributedConfig",
    "RewardExtras",
    "TrainConfig",
    "check_component",
    "config_yaml",
    "find_config",
    "instantiate",
    "instantiate_callable",
    "load_config",
    "nearest",
    "parse",
    "split_extras",
]
