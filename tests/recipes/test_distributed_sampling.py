"""Sampling on sharded weights: the same samples however they are gathered, and no pass too many."""

from __future__ import annotations

from pathlib import Path

import pytest
from rank_runs import on_ranks
from rank_work import passes, runs
from recipe_runs import EVAL, records

NATIVE = ("batch_size=5", "num_steps=2", "grpo_samples=4", "forward_batch_size=8", *EVAL)


@pytest.mark.parametrize("mode", ["never", "auto"])
def test_samples_do_not_depend_on_how_weights_are_gathered(mode: str, kind: str, tmp_path: Path) -> None:
    """Five prompts and six held-out tasks, in chunks of unequal number, on two ranks."""
    cases = {name: (kind, tmp_path / name, (*NATIVE, f"gather_weights={name}")) for name in ("always", mode)}
    on_ranks(2, tmp_path / "results", runs, cases)
    files = [(tmp_path / name / "rollouts.jsonl").read_bytes() for name in cases]
    assert files[0] == files[1]
    tasks = [records(tmp_path / name / "metrics.jsonl")[0]["eval/tasks"] for name in cases]
    assert tasks == [6, 6]


def test_gen_03_gen_18_ranks_end_at_their_own_step(tmp_path: Path) -> None:
    """Each makes the passes of its longest completion; the shorter ones join in for the rest, no more."""
    by_rank = on_ranks(3, tmp_path / "results", passes, tmp_path / "out")
    made = [rank["made"] for rank in by_rank]
    assert made == [rank["expected"] for rank in by_rank] and len(set(made)) > 1
    assert by_rank[2]["made"] == 0  # it had no prompt
    assert [rank["joined"] for rank in by_rank] == [max(made) - number for number in made]
