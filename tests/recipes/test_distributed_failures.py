"""Several ranks of which one fails, started as a user starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_bad_input_is_one_line_and_status_2(tmp_path: Path) -> None:
    """Two ranks find the same mistake; one of them says it, and the launcher adds no traceback."""
    command = ["run", "--nproc_per_node", "2", "grpo_full_finetune_distributed"]
    done = subprocess.run(
        [sys.executable, "-m", "grpo.cli", *command, "--config", "tiny/full_distributed", "sead=1"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert done.stderr.count("error: sead: unknown key (did you mean 'seed'?)") == 1
    assert "Traceback" not in done.stderr
