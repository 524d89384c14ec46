"""Walking a config's tree in tests."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

Path = tuple[str | int, ...]


def mappings(tree: Any, path: Path = ()) -> Iterator[Path]:
    """Paths of all mappings in a tree."""
    if isinstance(tree, dict):
        yield path
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield from mappings(value, (*path, key))


def with_key(tree: dict[str, Any], path: Path, key: str) -> dict[str, Any]:
    """A copy of a tree with one key more in the mapping at a path."""
    changed = copy.deepcopy(tree)
    node: Any = changed
    for part in path:
        node = node[part]
    node[key] = 1
    return changed


def dotted(path: Path, *more: str) -> str:
    """A path as error messages spell it."""
    return ".".join(map(str, (*path, *more)))
