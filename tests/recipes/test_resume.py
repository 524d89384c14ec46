"""A run that was stopped, whenever and however, and goes on as if it had not been."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from recipe_runs import (
    REWARDS,
    SMALL,
    TINY_STEPS,
    WEIGHTS,
    assert_same_run,
    finish,
    metrics,
    records,
    reproducible,
    rewards,
    run,
    set_up,
    start_cli,
    weights,
)

# Killed by step 5 at the latest: enough steps follow for a killer that is held up.
TWELVE_STEPS = ("num_steps=12", "save_every_n_steps=2")
RESUME = "resume_from_checkpoint=true"


def interrupted(kind: str, out: Path, step: int, *overrides: str, per_step: int = 4 * 8) -> None:
    """A run that is interrupted while it scores the samples of ``step``, by a reward of weight 0."""
    with pytest.raises(KeyboardInterrupt):
        run(kind, out, *overrides, interrupting_at((step - 1) * per_step + 1))


def interrupting_at(call: int) -> str:
    return rewards(*REWARDS, {"_component_": "recipe_parts.Interrupts", "call": call, "weight": 0.0})


# A reward that never interrupts, so that both runs have the same columns.
QUIET = interrupting_at(10**9)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs of twelve steps that nothing stopped, by kind."""
    torch.set_num_threads(1)
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in ("full", "lora")}
    for kind, folder in folders.items():
        run(kind, folder, *TWELVE_STEPS)
    return folders


def kill_after(process: subprocess.Popen[str], out: Path, lines: int, delay: float) -> None:
    """SIGKILL, ``delay`` seconds after ``metrics.jsonl`` has so many lines."""
    file = out / "metrics.jsonl"
    deadline = time.monotonic() + 240
    while not (file.exists() and file.read_bytes().count(b"\n") >= lines):
        assert process.poll() is None and time.monotonic() < deadline, finish(process)
        time.sleep(0.002)
    time.sleep(delay)
    process.kill()


@pytest.mark.parametrize(("kind", "lines", "seed"), [("full", 1, 0), ("full", 4, 1), ("lora", 3, 2)])
def test_res_14_killed_at_a_random_moment(
    kind: str, lines: int, seed: int, straight: dict[str, Path], tmp_path: Path
) -> None:
    """Around the first checkpoint, and between later ones."""
    overrides = (*SMALL, *TWELVE_STEPS, "output_dir=out")
    process = start_cli(kind, tmp_path, "--config", f"tiny/{kind}_single_device", *overrides)
    out = tmp_path / "out"
    kill_after(process, out, lines, random.Random(seed).uniform(0, 0.1))
    assert finish(process)[0] == -signal.SIGKILL
    assert run(kind, out, *TWELVE_STEPS, RESUME).steps_done < 12
    assert_same_run(kind, straight[kind], out, 12)


def test_res_09_killed_while_it_saves(straight: dict[str, Path], tmp_path: Path) -> None:
    """Killed when the weights of step 4 are written and its state is not: step 2 is what counts."""
    overrides = ("lr_scheduler={_component_: recipe_parts.DiesInSave, updates: 4}", "output_dir=out")
    arguments = ("--config", "tiny/full_single_device", *SMALL, *TWELVE_STEPS, *overrides)
    process = start_cli("full", tmp_path, *arguments)
    assert finish(process)[0] == -signal.SIGKILL
    out = tmp_path / "out"
    assert [line["step"] for line in metrics(out)] == [1, 2, 3, 4]
    assert sorted(path.name for path in out.glob("step_*")) == ["step_2", "step_4.tmp"]
    assert (out / "step_4.tmp" / WEIGHTS["full"]).is_file()
    assert run("full", out, *TWELVE_STEPS, RESUME).steps_done == 2
    assert sorted(path.name for path in out.glob("step_*")) == [f"step_{n}" for n in (10, 12, 2, 4, 6, 8)]
    assert_same_run("full", straight["full"], out, 12)


def test_a_reference_an_old_policy_and_a_schedule_are_resumed(kind: str, tmp_path: Path) -> None:
    """The reference of the resumed run is still the starting policy."""
    schedule = "lr_scheduler={_component_: grpo.schedule.cosine_schedule, num_warmup_steps: 2}"
    overrides = ("num_steps=4", "save_every_n_steps=2", "loss.kl_coeff=0.05", "ppo_epochs=2", schedule)
    run(kind, tmp_path / "straight", *overrides, QUIET)
    interrupted(kind, tmp_path / "stopped", 4, *overrides)
    assert run(kind, tmp_path / "stopped", *overrides, QUIET, RESUME).steps_done == 2
    assert_same_run(kind, tmp_path / "straight", tmp_path / "stopped", 4)
    assert all(line["kl_loss"] > 0 for line in metrics(tmp_path / "stopped"))


def test_bf16_is_resumed(kind: str, tmp_path: Path) -> None:
    overrides = ("num_steps=3", "save_every_n_steps=2", "dtype=bf16", "batch_size=2", "grpo_samples=4")
    run(kind, tmp_path / "straight", *overrides, QUIET)
    interrupted(kind, tmp_path / "stopped", 3, *overrides, per_step=2 * 4)
    assert run(kind, tmp_path / "stopped", *overrides, QUIET, RESUME).steps_done == 2
    assert_same_run(kind, tmp_path / "straight", tmp_path / "stopped", 3)


def test_res_05_only_the_remaining_steps_are_run(tmp_path: Path) -> None:
    overrides = (*TINY_STEPS, "num_steps=10", "save_every_n_steps=6")
    interrupted("full", tmp_path, 8, *overrides, per_step=2)
    recipe = set_up("full", tmp_path, *overrides, RESUME)
    given = recipe.prompts.state_dict()["prompts_given"]
    recipe.train()
    assert recipe.prompts.state_dict()["prompts_given"] - given == 4
    assert [line["step"] for line in metrics(tmp_path)] == list(range(1, 11))


def test_res_01_epoch_boundary_in_a_run(tmp_path: Path) -> None:
    """Two epochs of four steps, stopped at the end of the first: four further steps, each task twice."""
    overrides = (*TINY_STEPS, "~num_steps", "epochs=2", "dataset.size=4", "save_every_n_steps=4")
    interrupted("full", tmp_path, 5, *overrides, per_step=2)
    assert run("full", tmp_path, *overrides, RESUME).steps_done == 4
    seen = [line["task"] for line in records(tmp_path / "rollouts.jsonl")]
    assert len(seen) == 2 * 2 * 4
    assert {seen.count(task) for task in seen} == {2 * 2}


def test_res_11_the_second_resume_starts_where_the_first_was_stopped(tmp_path: Path) -> None:
    overrides = (*TINY_STEPS, "num_steps=40", "save_every_n_steps=10")
    interrupted("full", tmp_path, 12, *overrides, per_step=2)
    interrupted("full", tmp_path, 33 - 10, *overrides, RESUME, per_step=2)
    assert set_up("full", tmp_path, *overrides, RESUME).steps_done == 30


def test_res_13_a_finished_run_is_extended_exactly(kind: str, tmp_path: Path) -> None:
    """One epoch, then a second: the last checkpoint is there without being due, state and all.

    The rate is constant: a decaying schedule has another horizon in the longer run, and so another
    rate in its first steps, which no resume can make good.
    """
    overrides = ("~num_steps", "dataset.size=12", "save_every_n_steps=2")
    run(kind, tmp_path / "straight", *overrides, "epochs=2")
    run(kind, tmp_path / "extended", *overrides, "epochs=1")
    assert (tmp_path / "extended" / "step_3").is_dir()
    assert run(kind, tmp_path / "extended", *overrides, "epochs=2", RESUME).steps_done == 3
    assert_same_run(kind, tmp_path / "straight", tmp_path / "extended", 6)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_res_15_adapters_stay_where_they_were_loaded(dtype: str, tmp_path: Path) -> None:
    """A step at rate 0 changes nothing: not the adapter either, which was 0 before it was loaded."""
    overrides = (f"dtype={dtype}", "optimizer.lr=0.0", "num_steps=2")
    recipe = set_up("lora", tmp_path, *overrides)
    adapter = recipe.model.layers[1].attn.q_proj.lora_b.weight
    assert not adapter.any()
    with torch.no_grad():
        adapter.fill_(0.5)
    saved = weights(recipe)
    recipe.checkpointer.save(1, recipe.model, recipe.stateful, "", recipe.own)
    resumed = run("lora", tmp_path, *overrides, RESUME)
    assert metrics(tmp_path)[-1]["skipped_updates"] == 0 and metrics(tmp_path)[-1]["grad_norm"] > 0
    assert (resumed.model.layers[1].attn.q_proj.lora_b.weight == 0.5).all()
    for name, value in weights(resumed).items():
        assert torch.equal(value, saved[name])


def test_what_was_written_stays_after_an_interrupt(tmp_path: Path) -> None:
    interrupted("full", tmp_path, 3, "num_steps=5", "save_every_n_steps=1")
    assert [line["step"] for line in metrics(tmp_path)] == [1, 2]
    assert {line["step"] for line in records(tmp_path / "rollouts.jsonl")} == {1, 2}
    assert sorted(path.name for path in tmp_path.glob("step_*")) == ["step_1", "step_2"]


def test_a_resume_without_a_checkpoint_starts_at_the_beginning(tmp_path: Path) -> None:
    interrupted("full", tmp_path / "stopped", 2, "num_steps=2")
    run("full", tmp_path / "stopped", "num_steps=2", QUIET, RESUME)
    run("full", tmp_path / "straight", "num_steps=2", QUIET)
    assert_same_run("full", tmp_path / "straight", tmp_path / "stopped", 2)


def test_a_resume_of_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    run("full", tmp_path, "num_steps=2")
    before = reproducible(tmp_path), (tmp_path / "rollouts.jsonl").read_bytes()
    assert run("full", tmp_path, "num_steps=2", RESUME).steps_done == 2
    assert (reproducible(tmp_path), (tmp_path / "rollouts.jsonl").read_bytes()) == before
