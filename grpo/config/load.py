"""From a YAML file and overrides to a plain, resolved tree of dicts, lists and values, and back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from grpo.config.errors import ConfigError, nearest
from grpo.config.typecheck import COMPONENT, is_component, show

Tree = dict[str, Any]


def load_tree(path: Path, overrides: Iterable[str] = ()) -> Tree:
    """Read a config file, apply overrides in order, resolve interpolations.

    Args:
        path: a YAML file. Duplicate keys are refused; ``1e-5`` is a number.
        overrides: ``key=value``, ``some.key.0.deep=value`` or ``~key``; values are YAML.

    Raises:
        ConfigError: one line that tells the file and line, the override, or the key.
    """
    tree = read_yaml(path)
    for override in overrides:
        apply_override(tree, override)
    return resolve(tree)


def read_yaml(path: Path) -> Tree:
    """A config file as written, interpolations and all."""
    try:
        node = OmegaConf.load(path)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{path}, line {mark.line + 1}, column {mark.column + 1}" if mark else str(path)
        raise ConfigError(f"{where}: not valid YAML: {_one_line(error.problem or error)}") from error
    except (yaml.YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a valid config: {_one_line(error)}") from error
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read as a config ({error.strerror or _one_line(error)})"
        ) from error
    if not OmegaConf.is_dict(node):
        raise ConfigError(f"{path}: expected a mapping of keys to values, got a list")
    tree = OmegaConf.to_container(node, resolve=False)
    assert isinstance(tree, dict)
    _check_keys("", tree)
    return tree


def apply_override(tree: Tree, override: str) -> None:
    """Change a tree by one command line override.

    As in torchtune, a name given for a component replaces its ``_component_``:
    ``optimizer=torch.optim.SGD`` keeps the optimizer's other arguments.

    Raises:
        ConfigError: not of the form ``key=value`` or ``~key``, or no such place in the tree.
    """
    if override.startswith("~"):
        parent, last = _parent(tree, override[1:], override, create=False)
        if isinstance(parent, list):
            del parent[_index(parent, last, override)]
        elif last in parent:
            del parent[last]
        else:
            raise ConfigError(f"override {override!r}: no key {last!r} to remove{nearest(last, parent)}")
        return
    key, separator, text = override.partition("=")
    if not separator or not re.fullmatch(r"\w+(\.\w+)*", key):
        raise ConfigError(f"override {override!r}: expected key=value, some.key=value or ~key")
    try:
        value = OmegaConf.to_container(OmegaConf.create(f"value: {text}"), resolve=False)
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        problem = getattr(error, "problem", None) or error
        raise ConfigError(
            f"override {override!r}: the value is not valid YAML: {_one_line(problem)}"
        ) from error
    assert isinstance(value, dict)
    value = value["value"]
    _check_keys(key, value)
    parent, last = _parent(tree, key, override, create=True)
    place = _index(parent, last, override) if isinstance(parent, list) else last
    old = parent[place] if isinstance(parent, list) else parent.get(place)
    if is_component(old) and isinstance(value, str) and not value.startswith("${"):
        old[COMPONENT] = value
    else:
        parent[place] = value


def resolve(tree: Tree) -> Tree:
    """Replace every ``${...}`` by what it refers to.

    Raises:
        ConfigError: an interpolation cannot be resolved, or a value is still ``???``.
    """
    try:
        resolved = OmegaConf.to_container(OmegaConf.create(tree), resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        message = str(error).splitlines()[0]
        message = message.removeprefix("KeyError raised while resolving interpolation: ").strip('"')
        place = getattr(error, "full_key", None) or "config"
        raise ConfigError(f"{_dotted(str(place))}: cannot be resolved: {message}") from error
    assert isinstance(resolved, dict)
    return resolved


def to_yaml(tree: Mapping[str, Any]) -> str:
    """A resolved tree as YAML text that :func:`load_tree` reads back as the same tree."""
    return OmegaConf.to_yaml(OmegaConf.create(_escaped(dict(tree))))


def _parent(tree: Tree, key: str, override: str, *, create: bool) -> tuple[Any, str]:
    """The mapping or list that holds a dotted key's last part, and that part."""
    *path, last = key.split(".")
    node: Any = tree
    for i, part in enumerate(path):
        if isinstance(node, list):
            node = node[_index(node, part, override)]
        else:
            if create and node.get(part) is None:
                node[part] = {}
            if part not in node:
                raise ConfigError(f"override {override!r}: no key {part!r}{nearest(part, node)}")
            node = node[part]
        if not isinstance(node, (dict, list)):
            reached = ".".join(path[: i + 1])
            raise ConfigError(f"override {override!r}: {reached} is {show(node)}, which has no keys")
    return node, last


def _index(items: list[Any], part: str, override: str) -> int:
    if not part.isdigit() or int(part) >= len(items):
        raise ConfigError(
            f"override {override!r}: expected a list index from 0 to {len(items) - 1}, got {part!r}"
        )
    return int(part)


def _check_keys(path: str, value: Any) -> None:
    """YAML reads ``on:`` and ``1:`` as keys that are no strings; no option is called so."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                where = f"{path}: " if path else ""
                raise ConfigError(f"{where}expected keys that are names, got {key!r}; quote it if it is one")
            _check_keys(f"{path}.{key}" if path else key, item)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            _check_keys(f"{path}.{i}", item)


def _escaped(value: Any) -> Any:
    """Guard literal ``${`` (and the backslashes before it) from being read as an interpolation."""
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_escaped(item) for item in value]
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", lambda match: match.group(1) * 2 + "\\${", value)
    return value


def _dotted(key: str) -> str:
    """``rewards[0].name`` as ``rewards.0.name``, the way overrides spell it."""
    return re.sub(r"\[(\w+)\]", r".\1", key).lstrip(".")


def _one_line(problem: object) -> str:
    return " ".join(str(problem).split())
