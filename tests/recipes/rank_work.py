"""What ranks do in tests: functions that a child process can import."""

from __future__ import annotations

import os
from pathlib import Path

from recipe_runs import run_distributed
from torch import Tensor


def runs(cases: dict[str, tuple[str, Path, tuple[str, ...]]]) -> dict[str, dict[str, Tensor]]:
    """What is trained after each run: (kind, folder, overrides) by name."""
    after = {}
    for name, (kind, folder, overrides) in cases.items():
        after[name] = run_distributed(kind, folder, *overrides)
        os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
    return after
