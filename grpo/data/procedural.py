"""Procedural tasks of the reasoning-gym library, which scores them too (open-thought/reasoning-gym)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from grpo.config.errors import ConfigError, nearest
from grpo.data.files import positive
from grpo.types import Task


def reasoning_gym_dataset(
    name: str, size: int, seed: int = 0, config: Mapping[str, Any] | None = None
) -> list[Task]:
    """Generated tasks; the same name, size, seed and config give the same tasks.

    The library draws item ``i`` from ``seed + i``. Two sets of one generator therefore share items
    unless their seeds lie at least a size apart: give a test set a far seed, such as 1000000.

    ``Task.metadata["reasoning_gym"]`` holds the generator's ``name`` and the whole ``entry``, which its
    scorer needs. Some scorers tell tuples from lists, so the entry is kept as it was made.

    Args:
        name: a generator, such as ``chain_sum``.
        size: how many tasks.
        seed: where they start.
        config: the generator's own settings, such as ``{min_terms: 2, max_digits: 1}``.

    Raises:
        ConfigError: an unknown name or setting (with the nearest one), a value the generator refuses.
    """
    import reasoning_gym  # takes seconds

    settings = _checked_settings(name, size, seed, config)
    generator = reasoning_gym.create_dataset(name, **settings)
    return [_task(name, seed, i, generator[i]) for i in range(size)]


def _check_reasoning_gym_dataset(
    name: str, size: int, seed: int = 0, config: Mapping[str, Any] | None = None
) -> None:
    """Name and settings are the library's; nothing is generated."""
    _checked_settings(name, size, seed, config)


reasoning_gym_dataset.check = _check_reasoning_gym_dataset


def _checked_settings(name: str, size: int, seed: int, config: Mapping[str, Any] | None) -> dict[str, Any]:
    from reasoning_gym.factory import DATASETS  # takes seconds

    positive("size", size)
    if name not in DATASETS:
        raise ConfigError(f"name: no generator {name!r}{nearest(str(name), DATASETS)}")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ConfigError(f"seed: expected an integer, got {seed!r}")
    if config is not None and not isinstance(config, Mapping):
        raise ConfigError(f"config: expected a mapping, got {config!r}")
    config_class = DATASETS[name][1]
    valid = {f.name for f in dataclasses.fields(config_class) if f.init} - {"seed", "size"}
    for key in config or {}:
        if key not in valid:
            raise ConfigError(
                f"config.{key}: reasoning_gym {name} has no such setting{nearest(str(key), valid)}"
            )
    settings = {**(config or {}), "size": size, "seed": seed}
    try:
        built = config_class(**settings)
        if hasattr(built, "validate"):
            built.validate()
    except (AssertionError, TypeError, ValueError, AttributeError, KeyError) as error:
        raise ConfigError(
            f"config: reasoning_gym {name} refuses it: {error} (config {dict(config or {})})"
        ) from error
    return settings


def _task(name: str, seed: int, index: int, entry: dict[str, Any]) -> Task:
    answer = entry["answer"]
    return Task(
        id=f"{name}-{seed}-{index}",
        question=entry["question"],
        answer=None if answer is None else str(answer),
        metadata={"reasoning_gym": {"name": name, "entry": dict(entry)}},
    )
