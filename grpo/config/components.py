"""Components: YAML mappings with ``_component_``, checked against signatures, then built."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Collection, Mapping
from types import ModuleType
from typing import Any

from grpo.config.errors import ConfigError, nearest
from grpo.config.typecheck import COMPONENT, check_type, is_component, resolved_hints, show, underlying

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def instantiate(node: Mapping[str, Any] | None, **supplied: Any) -> Any:
    """Build a component, nested ones first.

    Args:
        node: ``{"_component_": "package.module.name", argument: value, ...}``; None gives None.
        supplied: arguments of the outermost component that only exist at run time.

    Returns:
        Whatever the component returns.

    Raises:
        ConfigError: the target cannot be imported, or it raised one itself.

    Example:
        >>> instantiate({"_component_": "fractions.Fraction", "numerator": 1}, denominator=2)
        Fraction(1, 2)
    """
    if node is None:
        return None
    target = import_target(str(node[COMPONENT]))
    kwargs = {key: _built(value) for key, value in node.items() if key != COMPONENT}
    return target(**kwargs, **supplied)


def takes_itself(target: Any, parameter: str) -> bool:
    """Whether a component's target is a plain function of ``parameter``, to be called and not to be built."""
    return inspect.isfunction(target) and parameter in inspect.signature(target).parameters


def instantiate_callable(node: Mapping[str, Any], parameter: str) -> Callable[..., Any]:
    """Build a component that is called with ``parameter``, or take the function that it names.

    ``_component_`` may name a class (or a function) that returns the callable, or a function that
    takes ``parameter`` itself; the node's other keys are then bound to it.
    """
    target = import_target(str(node[COMPONENT]))
    if not takes_itself(target, parameter):
        return instantiate(node)
    return functools.partial(target, **{key: _built(v) for key, v in node.items() if key != COMPONENT})


def split_extras(node: Mapping[str, Any], extras: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Part a list item's own keys (a reward's weight, say) from its component.

    Returns:
        The component's node without the extras, and the extras that were given.
    """
    component = {key: value for key, value in node.items() if key not in extras}
    return component, {key: value for key, value in node.items() if key in extras}


def check_component(
    path: str,
    node: Any,
    supplied: Collection[str] = (),
    extras: Collection[str] = (),
    called_with: str | None = None,
) -> Callable[..., Any]:
    """Check a component without building it: its target, its arguments, the target's own ``check``.

    Args:
        path: where the component stands in the config, such as ``rewards.0``.
        node: the YAML mapping.
        supplied: names of the arguments that the recipe passes at run time.
        extras: keys allowed beside the component's arguments, for the hint to a typo; the node
            has them no more.
        called_with: see :func:`instantiate_callable`.

    Returns:
        The imported target.

    Raises:
        ConfigError: one line that starts with the key's path.
    """
    if not is_component(node):
        raise ConfigError(f"{path}: expected a component (a mapping with {COMPONENT}), got {show(node)}")
    dotted = node[COMPONENT]
    if not isinstance(dotted, str):
        raise ConfigError(f"{path}.{COMPONENT}: expected a dotted name, got {show(dotted)}")
    try:
        target = import_target(dotted)
    except ConfigError as error:
        raise ConfigError(f"{path}.{COMPONENT}: {error}") from error.__cause__
    if called_with is not None and takes_itself(target, called_with):
        supplied = (*supplied, called_with)
    kwargs = {key: value for key, value in node.items() if key != COMPONENT}
    own_check = _own_check(target)
    _check_arguments(path, dotted, target, kwargs, supplied, extras, own_check is not None)
    hints = resolved_hints(target)
    for key, value in kwargs.items():
        check_type(f"{path}.{key}", value, hints.get(key, Any))
        _check_nested(f"{path}.{key}", value)
    if own_check is not None:
        try:
            own_check(**kwargs)
        except ValueError as error:
            names = _parameters(dotted, target).keys() | kwargs.keys()
            raise ConfigError(prefixed(path, str(error), names)) from error
    return target


def prefixed(path: str, message: str, names: Collection[str]) -> str:
    """Put a component's path before its own message; an argument's name continues the path.

    Example:
        >>> prefixed("dataset", "path: no such file", {"path"})
        'dataset.path: no such file'
    """
    first = re.match(r"[A-Za-z_]\w*(?=[:.\s\[])", message)
    return f"{path}.{message}" if first and first.group() in names else f"{path}: {message}"


def import_target(dotted: str) -> Callable[..., Any]:
    """The object behind a dotted name; modules of the current folder are found too.

    Raises:
        ConfigError: no such module or attribute (with the nearest name), the module fails on
            import, or the object cannot be called.
    """
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    first, *rest = dotted.split(".")
    if not rest or not all(part.isidentifier() for part in (first, *rest)):
        raise ConfigError(f"expected a dotted name such as package.module.name, got {dotted!r}")
    found: Any = _import_module(first)
    if found is None:
        raise ConfigError(f"no module named {first!r}{nearest(first, _top_level_names())}")
    reached = first
    for part in rest:
        name = f"{reached}.{part}"
        following = _guarded(name, lambda: getattr(found, part, None))  # noqa: B023 - called at once
        if following is None and isinstance(found, ModuleType):
            following = _import_module(name)
        if following is None:
            raise ConfigError(f"{reached} has no {part!r}{nearest(part, _names_in(found))}")
        found, reached = following, f"{reached}.{part}"
    if not callable(found):
        raise ConfigError(f"{dotted} is of type {type(found).__name__}, expected a class or function")
    return found


def _built(value: Any) -> Any:
    if is_component(value):
        return instantiate(value)
    if isinstance(value, Mapping):
        return {key: _built(item) for key, item in value.items()}
    return [_built(item) for item in value] if isinstance(value, list) else value


def _check_nested(path: str, value: Any) -> None:
    if is_component(value):
        check_component(path, value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _check_nested(f"{path}.{key}", item)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            _check_nested(f"{path}.{i}", item)


def _check_arguments(
    path: str,
    dotted: str,
    target: Callable[..., Any],
    kwargs: Mapping[str, Any],
    supplied: Collection[str],
    extras: Collection[str],
    checks_itself: bool,
) -> None:
    """Unknown, doubly given and missing arguments."""
    parameters = _parameters(dotted, target)
    names = [name for name, p in parameters.items() if p.kind in _NAMED]
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    for key in kwargs:
        if key in supplied:
            raise ConfigError(f"{path}.{key}: the recipe itself passes this argument to {dotted}; remove it")
        # A target with **kwargs would swallow a typo: only its own check can tell one.
        if key not in names and not (takes_any and checks_itself):
            valid = [*(name for name in names if name not in supplied), *extras]
            raise ConfigError(f"{path}.{key}: unknown argument of {dotted}{nearest(key, valid)}")
    for name in supplied:
        if name not in names and not takes_any:
            raise ConfigError(f"{path}.{COMPONENT}: {dotted} does not take {name!r}, which the recipe passes")
    for name in names:
        if parameters[name].default is inspect.Parameter.empty and name not in (*kwargs, *supplied):
            raise ConfigError(f"{path}.{name}: required argument of {dotted} is missing")


def _parameters(dotted: str, target: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(target).parameters
    except ValueError as error:
        raise ConfigError(f"{COMPONENT}: {dotted} tells no signature to check arguments against") from error


def _own_check(target: Any) -> Callable[..., None] | None:
    """The target's static check of its arguments; a method that needs an instance is not one."""
    target = underlying(target)
    if inspect.isclass(target):
        static = inspect.getattr_static(target, "check", None)
        return target.check if isinstance(static, (staticmethod, classmethod)) else None
    return getattr(target, "check", None)


def _import_module(name: str) -> ModuleType | None:
    """The module, or None where there is none of that name."""
    return _guarded(name, lambda: importlib.import_module(name))


def _guarded(name: str, reach: Callable[[], Any]) -> Any:
    """Import ``name`` by ``reach``; None where it does not exist, one line where it fails."""
    try:
        return reach()
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            return None
        raise ConfigError(f"{name} needs the package {error.name!r}, which is not installed") from error
    except Exception as error:
        # A module of the user's own may fail in any way; the line it failed at is what helps.
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(frame.filename)}, line {frame.lineno}"
        line = " ".join(str(error).split())
        raise ConfigError(f"importing {name} failed: {type(error).__name__}: {line} ({where})") from error


def _top_level_names() -> list[str]:
    local = [module.name for module in pkgutil.iter_modules([os.getcwd()])]
    return [*local, "grpo", "torch", "torchtune"]


def _names_in(found: Any) -> list[str]:
    names = [name for name in dir(found) if not name.startswith("_")]
    if isinstance(found, ModuleType) and hasattr(found, "__path__"):
        names += [module.name for module in pkgutil.iter_modules(found.__path__)]
    return names
