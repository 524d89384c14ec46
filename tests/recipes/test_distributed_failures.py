"""Runs of several ranks of which one fails, or is told to stop, started as a user starts them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rank_runs import free_port, on_ranks
from rank_work import runs
from recipe_runs import (
    SMALL,
    TINY_STEPS,
    assert_same_run,
    finish,
    metrics,
    run,
    start_cli,
    start_ranks_cli,
)

from grpo.checkpoint import read_manifest, step_folders

KILL_TRIALS = Path(__file__).parents[2] / "scripts" / "kill_trials.py"
TWO_RANKS = "--nproc_per_node 2"
# Steps in which every group of every rank is trained on, so that the loss is called once in each.
STEPS = (*TINY_STEPS, "batch_size=2")
STEPS_CLI = (*SMALL, *STEPS, "output_dir=out")
RESUME = "resume_from_checkpoint=true"


def fault(marker: Path, at: int, kind: str, rank: int = 0) -> str:
    """The override with which the GRPO loss does something else first, at one step of one rank."""
    node = {"_component_": "recipe_parts.FaultAt", "call": at, "fault": kind, "rank": rank}
    return f"loss={json.dumps(node | {'marker': str(marker)})}"


def on_nodes(count: int) -> str:
    """The launch of two ranks on one machine, or as two machines that meet on the loopback device."""
    if count == 1:
        return TWO_RANKS
    meeting = f"--rdzv_backend c10d --rdzv_id job --rdzv_endpoint 127.0.0.1:{free_port()}"
    return f"--nnodes 2 --nproc_per_node 1 {meeting}"


def on_two_ranks(kind: str, out: Path, *overrides: str) -> None:
    """The same recipe without a launcher."""
    case = (kind, out, (*overrides, f"output_dir={out}"))
    on_ranks(2, out.with_name(f"{out.name}_results"), runs, {"": case})


def whole_steps(out: Path) -> list[int]:
    """Steps of which there is a checkpoint; the manifest is compared with the files."""
    folders = step_folders(out)
    for folder in folders.values():
        read_manifest(folder)
    return sorted(folders)


def test_bad_input_is_one_line_and_status_2(tmp_path: Path) -> None:
    """Two ranks find the same mistake; one of them says it, and the launcher adds no traceback."""
    status, _, err = finish(start_ranks_cli("full", tmp_path, TWO_RANKS, "sead=1"))
    assert status == 2
    assert err.count("error: sead: unknown key (did you mean 'seed'?)") == 1
    assert "Traceback" not in err


@pytest.mark.parametrize("program", ["grpo.cli", "torchtune._cli.tune"])
def test_an_error_on_one_rank_ends_the_job_and_is_shown(program: str, tmp_path: Path) -> None:
    """The other rank waits for gradients that never come."""
    broken = fault(tmp_path / "marker", 3, "raise", rank=1)
    process = start_ranks_cli(
        "full", tmp_path, TWO_RANKS, *STEPS_CLI, broken, "save_every_n_steps=1", program=program
    )
    while not (tmp_path / "marker").exists():
        assert process.poll() is None, finish(process)
        time.sleep(0.05)
    raised = time.monotonic()
    status, _, err = finish(process)
    assert time.monotonic() - raised < 60
    assert status == 1
    assert "ArithmeticError: this loss fails on purpose" in err
    assert whole_steps(tmp_path / "out") == [1, 2]
    assert [line["step"] for line in metrics(tmp_path / "out")] == [1, 2]


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_restarted_job_goes_on_from_the_newest_step(nodes: int, tmp_path: Path) -> None:
    """torchrun starts all ranks anew; what it then samples is what it would have sampled."""
    steps = ("num_steps=4", "save_every_n_steps=2")
    once = fault(tmp_path / "marker", 4, "raise", rank=1)
    launch = f"{on_nodes(nodes)} --max_restarts 1"
    arguments = ("full", tmp_path, launch, *STEPS_CLI, *steps, once)
    ends = [finish(process) for process in [start_ranks_cli(*arguments) for _ in range(nodes)]]
    assert [status for status, _, _ in ends] == [0] * nodes, "\n=====\n".join(err for _, _, err in ends)
    assert "ArithmeticError: this loss fails on purpose" in "".join(err for _, _, err in ends)
    on_two_ranks("full", tmp_path / "straight", *STEPS, *steps)
    assert_same_run("full", tmp_path / "out", tmp_path / "straight", 4)


@pytest.mark.parametrize("who", ["launcher", "self"], ids=["all_ranks", "one_rank"])
def test_sigterm_finishes_the_step_saves_and_has_a_status_of_its_own(who: str, tmp_path: Path) -> None:
    """Sent to the launcher, which hands it on to all ranks, or to a single rank, which tells the others."""
    told = fault(tmp_path / "marker", 2, who, rank=1)
    endless = (*STEPS_CLI, "num_steps=1000")
    status, said, err = finish(start_ranks_cli("full", tmp_path, TWO_RANKS, *endless, told))
    assert status == 75, err
    out = tmp_path / "out"
    [last] = whole_steps(out)
    assert last == 2 or (who == "launcher" and last < 10)  # its signal takes a while to arrive
    assert [line["step"] for line in metrics(out)] == list(range(1, last + 1))
    assert said.count(f"stopped by SIGTERM after step {last}; resume_from_checkpoint=true goes on") == 1
    assert "Traceback" not in err
    for folder, *resume in ((out, RESUME), (tmp_path / "straight",)):
        on_two_ranks("full", folder, *STEPS, f"num_steps={last + 1}", *resume)
    assert_same_run("full", out, tmp_path / "straight", last + 1)


def test_sigterm_stops_the_recipe_for_one_device_too(kind: str, tmp_path: Path) -> None:
    told = fault(tmp_path / "marker", 2, "self")
    config = ("--config", f"tiny/{kind}_single_device")
    status, said, err = finish(start_cli(kind, tmp_path, *config, *STEPS_CLI, "num_steps=1000", told))
    assert status == 75, err
    assert "stopped by SIGTERM after step 2" in said and "Traceback" not in err
    out = tmp_path / "out"
    assert whole_steps(out) == [2]
    run(kind, out, *STEPS, "num_steps=3", f"output_dir={out}", RESUME)
    run(kind, tmp_path / "straight", *STEPS, "num_steps=3", f"output_dir={tmp_path / 'straight'}")
    assert_same_run(kind, out, tmp_path / "straight", 3)


def test_a_rank_that_is_killed_never_leaves_a_hang_or_a_broken_checkpoint(tmp_path: Path) -> None:
    """Five of the trials of ``scripts/kill_trials.py``."""
    arguments = ("--trials", "5", "--longest", "10", "--seed", "1")
    done = subprocess.run(
        [sys.executable, KILL_TRIALS, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 kills" in done.stdout


def test_two_nodes_are_one_job(kind: str, tmp_path: Path) -> None:
    """Two launchers, with one rank each, and one folder."""
    launch = on_nodes(2)
    nodes = [start_ranks_cli(kind, tmp_path, launch, *STEPS_CLI) for _ in range(2)]
    for status, _, err in map(finish, nodes):
        assert status == 0, err
    on_two_ranks(kind, tmp_path / "one_node", *STEPS)
    assert_same_run(kind, tmp_path / "out", tmp_path / "one_node", 3)
