"""What a schema's fields carry beside their type: help, limits, and what a component is given."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

from grpo.config.components import check_component, split_extras
from grpo.config.errors import ConfigError, nearest
from grpo.config.typecheck import check_type, is_component, resolved_hints, show

Component = dict[str, Any]
"""A field that holds a component: a mapping with ``_component_`` and arguments."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """A plain value's help and limits (bounds are checked only where a value is given)."""

    help: str
    at_least: float | None = None
    more_than: float | None = None
    at_most: float | None = None
    pattern: str | None = None
    pattern_help: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slot:
    """A component's help, the arguments that the recipe passes to it, and whether it is a list.

    ``extras`` is a dataclass with the keys that each item of a list may carry beside its
    component's arguments. ``called_with`` names the parameter of a plain function that may stand for
    a component: the function itself is what the recipe calls.
    """

    help: str
    supplied: tuple[str, ...] = ()
    many: bool = False
    extras: type[Any] | None = None
    called_with: str | None = None


def option(help: str, *, default: Any = dataclasses.MISSING, **limits: Any) -> Any:
    """A dataclass field for a plain value; see :class:`Option` for the limits."""
    return dataclasses.field(default=default, metadata={"about": Option(help=help, **limits)})


def slot(help: str, *, default: Any = dataclasses.MISSING, **kwargs: Any) -> Any:
    """A dataclass field for a component; see :class:`Slot`. A default mapping is copied."""
    metadata = {"about": Slot(help=help, **kwargs)}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def is_required(field: dataclasses.Field[Any]) -> bool:
    """Whether a field has no default."""
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def build(schema: type[Any], tree: Mapping[str, Any]) -> Any:
    """Check a resolved tree against a schema and make the schema's dataclass of it.

    Order: unknown and missing keys, plain values, components (which imports their modules),
    then the schema's ``cross_check`` where it has one.

    Args:
        schema: a dataclass whose fields were made by :func:`option` and :func:`slot`.
        tree: dicts, lists and plain values; component nodes stay as they are.

    Raises:
        ConfigError: one line naming the key, what was expected, and what was given.
    """
    fields = {field.name: field for field in dataclasses.fields(schema)}
    for key in tree:
        if key not in fields:
            raise ConfigError(f"{key}: unknown key{nearest(key, fields)}")
    for name, field in fields.items():
        if is_required(field) and name not in tree:
            raise ConfigError(f"{name}: required key is missing ({field.metadata['about'].help})")
    hints = resolved_hints(schema)
    slots = {n: f.metadata["about"] for n, f in fields.items() if isinstance(f.metadata["about"], Slot)}
    for name, value in tree.items():
        if name not in slots:
            check_option(name, value, hints[name], fields[name].metadata["about"])
    cfg = schema(**tree)
    for name, about in slots.items():
        check_slot(name, getattr(cfg, name), about, required=is_required(fields[name]))
    if hasattr(cfg, "cross_check"):
        cfg.cross_check()
    return cfg


def check_option(path: str, value: Any, hint: Any, about: Option) -> None:
    """Check a plain value's type and limits.

    Raises:
        ConfigError: naming the key, the limit and the value.
    """
    if is_component(value):
        raise ConfigError(f"{path}: expected a plain value, got a component")
    check_type(path, value, hint)
    if isinstance(value, list):
        for i, item in enumerate(value):
            _check_limits(f"{path}.{i}", item, about)
    elif value is not None:
        _check_limits(path, value, about)


def _check_limits(path: str, value: Any, about: Option) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{path}: must be finite, got {value}")
    if about.at_least is not None and value < about.at_least:
        raise ConfigError(f"{path}: must be at least {about.at_least}, got {value}")
    if about.more_than is not None and value <= about.more_than:
        raise ConfigError(f"{path}: must be more than {about.more_than}, got {value}")
    if about.at_most is not None and value > about.at_most:
        raise ConfigError(f"{path}: must be at most {about.at_most}, got {value}")
    if about.pattern is not None and not re.fullmatch(about.pattern, value):
        raise ConfigError(f"{path}: expected {about.pattern_help}, got {show(value)}")


def check_slot(path: str, value: Any, about: Slot, *, required: bool) -> None:
    """Check one component, or a list of them with their extras.

    Raises:
        ConfigError: see :func:`grpo.config.components.check_component`.
    """
    if not about.many:
        if value is not None or required:
            check_component(path, value, about.supplied)
        return
    if not isinstance(value, list) or not value:
        raise ConfigError(f"{path}: expected a list of at least one component, got {show(value)}")
    extra_fields = dataclasses.fields(about.extras) if about.extras else ()
    hints = resolved_hints(about.extras) if about.extras else {}
    for i, item in enumerate(value):
        if not is_component(item):
            raise ConfigError(
                f"{path}.{i}: expected a component (a mapping with _component_), got {show(item)}"
            )
        extra_names = [field.name for field in extra_fields]
        component, extras = split_extras(item, extra_names)
        check_component(f"{path}.{i}", component, about.supplied, extra_names, about.called_with)
        for field in extra_fields:
            if field.name in extras:
                check_option(
                    f"{path}.{i}.{field.name}", extras[field.name], hints[field.name], field.metadata["about"]
                )
