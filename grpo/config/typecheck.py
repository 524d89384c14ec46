"""Does a YAML value fit a type annotation? In words where it does not."""

from __future__ import annotations

import collections.abc
import functools
import inspect
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, Union

from grpo.config.errors import ConfigError, nearest

COMPONENT = "_component_"

_SEQUENCES = (list, set, frozenset, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Set)
_PLURAL = {"an integer": "integers", "a number": "numbers", "a string": "strings"}
_MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


def is_component(value: object) -> bool:
    """Whether a YAML node is a mapping that names what to build."""
    return isinstance(value, Mapping) and COMPONENT in value


def check_type(path: str, value: Any, hint: Any) -> None:
    """Check one YAML value against one annotation.

    A nested component is not looked into: what it builds is known only at run time. A hint that
    says nothing about YAML values (a TypeVar, ``Any``) lets everything pass.

    Args:
        path: the value's place in the config, for the message.
        value: None, bool, int, float, str, list or dict.
        hint: a resolved annotation.

    Raises:
        ConfigError: the value does not fit; tells the place, what fits, and what was given.
    """
    hint = _plain(hint)
    if is_component(value) or _fits(value, hint):
        return
    whole, hint = hint, _not_null(hint)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    # Where only one item of a list or mapping is wrong, name that item.
    if isinstance(value, list) and origin in (*_SEQUENCES, tuple) and args:
        item_hints = _tuple_hints(args, len(value)) if origin is tuple else [args[0]] * len(value)
        if len(item_hints) == len(value):
            for i, (item, item_hint) in enumerate(zip(value, item_hints, strict=True)):
                check_type(f"{path}.{i}", item, item_hint)
    if isinstance(value, Mapping) and origin in _MAPPINGS and args:
        for key, item in value.items():
            check_type(f"{path}.{key}", item, args[1])
    typo = nearest(value, _literals(whole)) if isinstance(value, str) else ""
    typo = typo if "did you mean" in typo else ""  # the valid ones are listed already
    raise ConfigError(f"{path}: expected {describe(whole)}, got {show(value)}{typo}")


def show(value: object) -> str:
    """A value as an error message quotes it: short, with its type where that is the point."""
    text = repr(value)
    text = text if len(text) <= 80 else f"{text[:77]}..."
    return f"{text} (a string)" if isinstance(value, str) else "null" if value is None else text


def describe(hint: Any) -> str:
    """An annotation in words, as an error message and the config reference tell it."""
    hint = _plain(hint)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is None or hint is type(None):
        return "null"
    if origin is Literal:
        return " or ".join(repr(a) for a in args)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(describe(a) for a in args))
    if origin is tuple and args and args[-1] is not Ellipsis:
        return f"a list of {len(args)} ({', '.join(describe(a) for a in args)})"
    if hint is tuple or origin is tuple or hint in _SEQUENCES or origin in _SEQUENCES:
        item = describe(args[0]) if args else ""
        return f"a list of {_PLURAL.get(item, f'{item} each')}" if args else "a list"
    if hint in _MAPPINGS or origin in _MAPPINGS:
        return f"a mapping to {describe(args[1])}" if args else "a mapping"
    words = {bool: "true or false", int: "an integer", float: "a number", str: "a string", Any: "any value"}
    if hint in words:
        return words[hint]
    return f"a component ({COMPONENT}: ...) that makes a {getattr(origin or hint, '__name__', hint)}"


def underlying(target: Any) -> Any:
    """The function or class behind a ``functools.partial``; anything else as it is."""
    while isinstance(target, functools.partial):
        target = target.func
    return target


def resolved_hints(target: Any) -> dict[str, Any]:
    """Annotations of a callable's arguments by name; ``Any`` where one cannot be resolved.

    Args:
        target: a function, a class, a ``functools.partial`` or an object with ``__call__``.
    """
    target = underlying(target)
    if inspect.isclass(target):
        function = target.__new__ if target.__init__ is object.__init__ else target.__init__
    elif inspect.isroutine(target):
        function = target
    else:
        function = type(target).__call__
    function = inspect.unwrap(function)
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError, SyntaxError):
        # One annotation that only exists for type checkers must not switch off the others.
        namespace = getattr(function, "__globals__", {})
        raw = getattr(function, "__annotations__", {})
        return {name: _resolve(annotation, namespace) for name, annotation in raw.items()}


def _resolve(annotation: Any, namespace: dict[str, Any]) -> Any:
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, namespace)
    except (NameError, TypeError, AttributeError, SyntaxError):
        return Any


def _plain(hint: Any) -> Any:
    """Strip what says nothing about the value: Annotated, Final, NewType and ``type`` aliases."""
    while True:
        if typing.get_origin(hint) in (typing.Annotated, typing.Final, typing.ClassVar):
            hint = typing.get_args(hint)[0]
        elif hasattr(hint, "__supertype__"):
            hint = hint.__supertype__
        elif type(hint).__name__ == "TypeAliasType":
            hint = hint.__value__
        else:
            return hint


def _not_null(hint: Any) -> Any:
    """``X`` of ``X | None``; any other annotation as it is."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        others = [a for a in typing.get_args(hint) if a is not type(None)]
        return _plain(others[0]) if len(others) == 1 else hint
    return hint


def _literals(hint: Any) -> list[str]:
    """The strings an annotation names one by one."""
    hint = _plain(hint)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return [a for a in args if isinstance(a, str)]
    if origin in (Union, types.UnionType):
        return [name for a in args for name in _literals(a)]
    return []


def _tuple_hints(args: tuple[Any, ...], length: int) -> list[Any]:
    return [args[0]] * length if len(args) == 2 and args[1] is Ellipsis else list(args)


def _fits(value: Any, hint: Any) -> bool:
    hint = _plain(hint)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or hint is object or isinstance(hint, (str, typing.TypeVar, typing.ForwardRef)):
        return True
    if is_component(value):
        return True
    if hint is None or hint is type(None):
        return value is None
    if origin is Literal:
        return any(type(value) is type(a) and value == a for a in args)
    if origin in (Union, types.UnionType):
        return any(_fits(value, a) for a in args)
    return _fits_class(value, hint, origin, args)


def _fits_class(value: Any, hint: Any, origin: Any, args: tuple[Any, ...]) -> bool:
    kind = origin or hint
    if kind is bool:
        return isinstance(value, bool)
    if kind in (int, float):
        numbers = (int,) if kind is int else (int, float)
        return isinstance(value, numbers) and not isinstance(value, bool)
    if kind is tuple:
        hints = _tuple_hints(args, len(value)) if isinstance(value, list) and args else None
        return isinstance(value, list) and (
            hints is None
            or (len(hints) == len(value) and all(_fits(v, h) for v, h in zip(value, hints, strict=True)))
        )
    if kind in _SEQUENCES:
        return isinstance(value, list) and (not args or all(_fits(item, args[0]) for item in value))
    if kind in _MAPPINGS:
        return isinstance(value, Mapping) and (not args or all(_fits(v, args[1]) for v in value.values()))
    if kind is str or getattr(kind, "__name__", "") in ("Path", "PathLike", "PurePath"):
        return isinstance(value, str)
    # An object of any other class is made by a nested component.
    return isinstance(value, Mapping) and typing.is_typeddict(kind)
