"""Components that config tests name in YAML."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from grpo.config.errors import ConfigError

if TYPE_CHECKING:
    from nowhere import OnlyForTypeCheckers


def tiny_model(max_seq_len: int = 256) -> str:
    return f"model of {max_seq_len}"


def lora_model(lora_attn_modules: list[Literal["q_proj", "v_proj"]], lora_alpha: float = 16) -> str:
    return "lora"


qlora_model = functools.partial(lora_model, lora_alpha=8)


class Tokenizer:
    def __init__(self, path: str) -> None:
        self.path = path


class Checkpointer:
    def __init__(self, checkpoint_dir: str, output_dir: str) -> None:
        self.folders = (checkpoint_dir, output_dir)


def dataset(
    path: str, split: Literal["train", "test"] = "train", options: Mapping[str, int] | None = None
) -> str:
    return path


def check_dataset(path: str, split: str = "train", options: Mapping[str, int] | None = None) -> None:
    if path == "absent":
        raise ConfigError("path: no such file 'absent'")
    for name in options or {}:
        if name != "level":
            raise ConfigError(f"options.{name}: unknown (valid: level)")
    if split == "test" and path == "train":
        raise ConfigError("nothing left to train on")


dataset.check = check_dataset


@dataclass(frozen=True)
class Prompt:
    system: str | None = None


class Engine:
    def __init__(
        self,
        model: object,
        tokenizer: OnlyForTypeCheckers,
        forward_batch_size: int,
        seed: int,
        undefined: object = None,
        autocast_dtype: object = None,
        greedy: bool = False,
    ) -> None: ...


class EngineWithoutSeed:
    def __init__(
        self,
        model: object,
        tokenizer: object,
        forward_batch_size: int,
        undefined: object,
        autocast_dtype: object,
    ) -> None: ...


class Exact:
    def check(self, instance_method: int) -> None:
        raise AssertionError("a method of an instance is no static check")


class Tags:
    def __init__(self, tags: list[str], inner: object = None) -> None:
        self.tags, self.inner = tags, inner


class Open:
    """Takes anything, and checks it itself."""

    def __init__(self, **kwargs: Any) -> None:
        self.kwargs = kwargs

    @staticmethod
    def check(**kwargs: Any) -> None:
        if "typo" in kwargs:
            raise ConfigError("typo: unknown")


class Swallows:
    """Takes anything and checks nothing: a typo would pass."""

    def __init__(self, size: int = 1, **kwargs: Any) -> None: ...


class Advantage:
    def __init__(self, scale: Literal["std", "none"] = "std", pair: tuple[int, float] = (1, 2.0)) -> None: ...


def loss(epsilon: float = 0.2, kl_coeff: float = 0.0) -> str:
    return "loss"


def _check_loss(epsilon: float = 0.2, kl_coeff: float = 0.0) -> None:
    if epsilon <= 0:
        raise ValueError(f"epsilon must be more than 0, got {epsilon}")


loss.check = _check_loss


def schedule(optimizer: object, num_warmup_steps: int, num_training_steps: int) -> str:
    return "schedule"


NUMBER = 3
