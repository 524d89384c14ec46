"""Short, single-threaded runs: the same sums in the same order in this process and in a child."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

# Components are imported by name: make those of `recipe_parts.py` importable.
sys.path.append(str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["full", "lora"])
def kind(request: pytest.FixtureRequest) -> str:
    """Which of the two recipes."""
    return request.param
