"""Rules that hold for the repository as a whole."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCES = sorted([*REPOSITORY.glob("grpo/**/*.py"), *REPOSITORY.glob("recipes/*.py")])
TINY = REPOSITORY / "grpo" / "models" / "tiny"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(REPOSITORY)))
def test_files_and_functions_stay_short(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    limit = 300 if path.parent.name == "recipes" else 400
    assert len(source.splitlines()) <= limit
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and path.parent.name != "recipes":
            start = node.body[1].lineno if ast.get_docstring(node) and len(node.body) > 1 else node.lineno
            assert node.end_lineno - start < 60, node.name


def test_the_embedded_model_is_small() -> None:
    assert sum(path.stat().st_size for path in TINY.iterdir()) <= 3 * 2**20
