"""Rewards that raise: left out and counted, up to a limit."""

from __future__ import annotations

from pathlib import Path

import pytest
from recipe_runs import REWARDS, SMALL, finish, metrics, records, rewards, run, start_cli

from grpo.data import addition_dataset
from grpo.types import Task


def failing_on(task: Task, fraction: float) -> tuple[str, str]:
    failing = {"_component_": "recipe_parts.FailsOn", "task": task.id, "weight": 0.0}
    return rewards(REWARDS[0], failing), f"max_reward_error_fraction={fraction}"


def test_one_tasks_failures_are_counted_and_the_run_goes_on(tmp_path: Path) -> None:
    """Eight tasks, four a step: the one that fails comes once in two steps."""
    task = addition_dataset(8)[5]
    run("full", tmp_path, "dataset.size=8", "num_steps=4", *failing_on(task, 0.2))
    lines = metrics(tmp_path)
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert sorted(line["reward_errors"] for line in lines) == [0, 0, 8, 8]
    assert [line["unscored"] for line in lines] == [line["reward_errors"] for line in lines]
    rows = records(tmp_path / "rollouts.jsonl")
    failed = [row for row in rows if row["task"] == task.id]
    assert len(failed) == 2 * 8
    assert all(row["reward"] is None and row["parts"]["FailsOn"] is None for row in failed)
    assert all(row["advantage"] == 0 for row in failed)
    assert all(row["reward"] is not None for row in rows if row["task"] != task.id)
    for line in lines:
        judged = [r["reward"] for r in rows if r["step"] == line["step"] and r["reward"] is not None]
        assert line["reward/mean"] == pytest.approx(sum(judged) / len(judged))


def test_too_many_failures_stop_the_run_and_leave_what_was_written(tmp_path: Path) -> None:
    run("full", tmp_path / "before", "num_steps=3")
    third = next(row for row in records(tmp_path / "before" / "rollouts.jsonl") if row["step"] == 3)
    task = Task(id=third["task"], question=third["question"], answer=third["answer"])
    overrides = (*SMALL, "save_every_n_steps=1", "output_dir=out", *failing_on(task, 0.1))
    process = start_cli("full", tmp_path, "--config", "tiny/full_single_device", *overrides)
    status, _, err = finish(process)
    assert status == 1
    assert "RewardError: 7 of " in err and "(max_reward_error_fraction is 0.1)" in err
    told = f"LookupError: no verdict on {task.question}"
    assert f"the first was reward 'FailsOn' on task '{task.id}': {told}" in err
    out = tmp_path / "out"
    assert [line["step"] for line in metrics(out)] == [1, 2]
    assert {row["step"] for row in records(out / "rollouts.jsonl")} == {1, 2}
    assert sorted(path.name for path in out.glob("step_*")) == ["step_1", "step_2"]
    assert run("full", out, "resume_from_checkpoint=true").steps_done == 2
    assert metrics(out)[-1]["step"] == 3


def test_the_held_out_tasks_have_the_same_limit(tmp_path: Path) -> None:
    task = addition_dataset(3, split="test")[1]
    held_out = ("eval_dataset={_component_: grpo.data.addition_dataset, size: 3, split: test}",)
    run("full", tmp_path, "num_steps=1", *held_out, *failing_on(task, 0.4))
    assert metrics(tmp_path)[-1]["eval/reward_errors"] == 1
    assert metrics(tmp_path)[-1]["eval/unscored"] == 1
