"""Checks over several keys at once, shared by the schemas."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo.config.components import import_target
from grpo.config.errors import ConfigError
from grpo.config.typecheck import COMPONENT


def check_only_one(first: str, first_value: Any, second: str, second_value: Any) -> None:
    """Exactly one of two keys is set.

    Raises:
        ConfigError: both or neither is.
    """
    if first_value is not None and second_value is not None:
        raise ConfigError(
            f"{first}: set exactly one of {first} and {second}, got {first_value} and {second_value}"
        )
    if first_value is None and second_value is None:
        raise ConfigError(f"{first}: set exactly one of {first} and {second}, got neither")


def reward_name(node: Mapping[str, Any]) -> str:
    """A reward's name in metrics: its ``name``, else the last part of its ``_component_``."""
    return node.get("name") or str(node[COMPONENT]).rpartition(".")[2]


def check_rewards(rewards: Sequence[Mapping[str, Any]]) -> None:
    """One success measure, and a name of its own for each.

    Raises:
        ConfigError: otherwise.
    """
    marked = [i for i, node in enumerate(rewards) if node.get("success", False)]
    if len(marked) != 1:
        given = f"rewards {', '.join(map(str, marked))}" if marked else "none"
        raise ConfigError(f"rewards: exactly one needs success: true, got {given}")
    first: dict[str, int] = {}
    for i, node in enumerate(rewards):
        name = reward_name(node)
        if name in ("mean", "std"):
            raise ConfigError(f"rewards.{i}.name: reward/{name} is the sum of all rewards; set another name")
        if name in first:
            raise ConfigError(
                f"rewards.{i}.name: {name!r} is also the name of rewards.{first[name]}; set another"
            )
        first[name] = i


def check_context(
    tokens: Mapping[str, int], model: Mapping[str, Any], checkpointer: Mapping[str, Any]
) -> None:
    """Prompt and completion together fit the model's context.

    The context is the smaller of the builder's ``max_seq_len`` (given or default) and
    ``max_position_embeddings`` in the checkpoint folder's ``config.json``; what is absent does
    not bound it.

    Args:
        tokens: the budgets by key; their sum is checked.
        model: the model's node, already checked.
        checkpointer: the checkpointer's node, already checked.

    Raises:
        ConfigError: the budget is over the context, or ``config.json`` is not valid JSON.
    """
    limits: dict[str, int] = {}
    parameter = inspect.signature(import_target(model[COMPONENT])).parameters.get("max_seq_len")
    builder_limit = model.get("max_seq_len", parameter.default if parameter else None)
    if isinstance(builder_limit, int):
        limits["max_seq_len of the model"] = builder_limit
    folder = checkpointer.get("checkpoint_dir")
    file = Path(folder).expanduser() / "config.json" if isinstance(folder, str) else None
    if file is not None and file.is_file():
        try:
            described = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ConfigError(f"checkpointer.checkpoint_dir: {file} is not valid JSON ({error})") from error
        positions = described.get("max_position_embeddings") if isinstance(described, dict) else None
        if isinstance(positions, int):
            limits[f"max_position_embeddings of {file}"] = positions
    if not limits:
        return
    source, limit = min(limits.items(), key=lambda item: item[1])
    if sum(tokens.values()) > limit:
        terms = " + ".join(f"{name} ({value})" for name, value in tokens.items())
        raise ConfigError(f"{next(iter(tokens))}: {terms} must be at most {limit}, the {source}")
