"""Imports go down the layers only; siblings do not import each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "grpo"

# Top first. A part imports itself and what stands in a lower line, never its own line.
LAYERS = (
    ("cli",),
    ("build",),
    ("eval",),
    ("generation", "checkpoint", "policy", "metrics"),
    ("advantage", "loss", "logprobs", "batching", "rewards", "data", "distributed", "models", "schedule"),
    ("types", "config"),
)
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}


def imported_modules(source: str, module: str = "", is_package: bool = False) -> Iterator[tuple[str, bool]]:
    """Absolute names of what a module imports, and whether it does so inside a function.

    ``from a import b`` gives ``a.b``: b may be a module.
    """
    tree = ast.parse(source)
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")
                package = parents[: len(parents) - node.level + int(is_package)]
                base = ".".join([*package, *([base] if base else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            yield name, id(node) in inside


def part_of(module: str) -> str | None:
    """``generation`` of ``grpo.generation.native``; None outside the package."""
    first, _, rest = module.partition(".")
    return rest.partition(".")[0] if first == "grpo" and rest else None


def wrong_arrows(module: str, source: str, is_package: bool = False) -> list[str]:
    """What a module of ``grpo`` may not import."""
    own = part_of(module)
    if own is None or own == "__init__":
        return [name for name, _ in imported_modules(source, module, is_package) if name.startswith("grpo.")]
    wrong = []
    for name, _ in imported_modules(source, module, is_package):
        part = part_of(name)
        if part is None or part == own or part == "__version__":
            continue
        if part not in LEVEL or LEVEL[part] <= LEVEL[own]:
            wrong.append(name)
    return wrong


def modules() -> list[tuple[str, Path]]:
    """Dotted names and files of the package."""
    found = []
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(REPOSITORY).with_suffix("").parts
        found.append((".".join(parts[:-1] if parts[-1] == "__init__" else parts), file))
    return found


MODULES = modules()
RECIPES = sorted((REPOSITORY / "recipes").glob("*.py"))


@pytest.mark.parametrize(("module", "file"), MODULES, ids=[module for module, _ in MODULES])
def test_imports_go_down(module: str, file: Path) -> None:
    part = part_of(module)
    assert part is None or part in LEVEL, f"{part}: give this part its place in LAYERS"
    assert wrong_arrows(module, file.read_text(encoding="utf-8"), file.name == "__init__.py") == []


@pytest.mark.parametrize(("module", "file"), MODULES, ids=[module for module, _ in MODULES])
def test_some_packages_are_imported_in_one_place_only(module: str, file: Path) -> None:
    recipes = {recipe.stem for recipe in RECIPES} | {"recipes", "configs"}
    for name, in_function in imported_modules(file.read_text(encoding="utf-8"), module):
        first = name.partition(".")[0]
        if first == "vllm":
            assert module.startswith("grpo.generation.") and "vllm" in file.stem, "vllm: only in its engines"
            assert in_function, "vllm: imported only when an engine is built"
        if first == "omegaconf":
            assert module.startswith("grpo.config."), "omegaconf: only in grpo.config"
        assert first not in recipes, "recipes are run, never imported"


@pytest.mark.parametrize("file", RECIPES, ids=[file.stem for file in RECIPES])
def test_recipes_do_not_import_each_other(file: Path) -> None:
    others = {recipe.stem for recipe in RECIPES} - {file.stem}
    names = {name.partition(".")[0] for name, _ in imported_modules(file.read_text(encoding="utf-8"))}
    assert not names & others


def test_the_package_is_found() -> None:
    assert ("grpo.config.errors", PACKAGE / "config" / "errors.py") in MODULES


@pytest.mark.parametrize(
    ("module", "source", "wrong"),
    [
        ("grpo.loss.presets", "from grpo.cli import main", ["grpo.cli.main"]),
        ("grpo.loss.presets", "from grpo.rewards import score", ["grpo.rewards.score"]),
        ("grpo.loss.presets", "from grpo import rewards", ["grpo.rewards"]),
        ("grpo.loss.presets", "def f():\n    import grpo.eval.held_out", ["grpo.eval.held_out"]),
        ("grpo.loss.presets", "from ..data import x", ["grpo.data.x"]),
        ("grpo.loss.presets", "from grpo.unheard_of import x", ["grpo.unheard_of.x"]),
        ("grpo.config.load", "from grpo.types import Task", ["grpo.types.Task"]),
        ("grpo.loss.presets", "from .objective import x\nfrom grpo.types import Task\nimport torch", []),
        ("grpo.eval.held_out", "from grpo.generation import Engine\nfrom grpo.rewards import score", []),
        ("grpo", "from grpo.loss import grpo_loss", ["grpo.loss.grpo_loss"]),
    ],
)
def test_a_wrong_arrow_is_seen(module: str, source: str, wrong: list[str]) -> None:
    assert wrong_arrows(module, source) == wrong


def test_an_import_inside_a_function_is_told_from_one_at_the_top() -> None:
    source = "import a\ndef f():\n    import b\nclass C:\n    def g(self):\n        from c import d\n"
    assert dict(imported_modules(source)) == {"a": False, "b": True, "c.d": True}
