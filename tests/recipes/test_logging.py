"""What a run writes beside its checkpoints, and that looking does not change what is seen."""

from __future__ import annotations

from pathlib import Path

import pytest
from recipe_runs import EVAL, metrics, records, reproducible, run, weights
from torch import equal


def test_evaluation_leaves_training_as_it_is(kind: str, tmp_path: Path) -> None:
    blind = run(kind, tmp_path / "blind", "num_steps=4")
    seeing = run(kind, tmp_path / "seeing", "num_steps=4", *EVAL, "eval_every_n_steps=2", "eval_batch_size=4")
    rollouts = [(tmp_path / name / "rollouts.jsonl").read_bytes() for name in ("blind", "seeing")]
    assert rollouts[0] == rollouts[1]
    for name, value in weights(blind).items():
        assert equal(value, weights(seeing)[name])
    evaluated = [line for line in records(tmp_path / "seeing" / "metrics.jsonl") if "eval/tasks" in line]
    assert [line["step"] for line in evaluated] == [0, 2, 4]
    assert all(line["eval/tasks"] == 6 and 0 <= line["eval/success_rate"] <= 1 for line in evaluated)
    trained = [
        {k: v for k, v in line.items() if not k.startswith("eval/")}
        for line in reproducible(tmp_path / "seeing")
    ]
    assert trained[1:] == reproducible(tmp_path / "blind")


def test_rollouts_are_written_when_asked(tmp_path: Path) -> None:
    run("full", tmp_path / "some", "num_steps=5", "log_rollouts_every_n_steps=2")
    assert {row["step"] for row in records(tmp_path / "some" / "rollouts.jsonl")} == {2, 4}
    run("full", tmp_path / "none", "num_steps=1", "log_rollouts_every_n_steps=null")
    assert records(tmp_path / "none" / "rollouts.jsonl") == []


def test_a_torchtune_logger_works_beside(tmp_path: Path) -> None:
    logger = "torchtune.training.metric_logging.DiskLogger"
    run("full", tmp_path, f"metric_logger={{_component_: {logger}, log_dir: {tmp_path / 'disk'}}}")
    (log,) = (tmp_path / "disk").iterdir()
    lines = log.read_text().splitlines()
    assert [line.split(" | ")[0] for line in lines] == ["Step 1", "Step 2", "Step 3"]
    for line, record in zip(lines, metrics(tmp_path), strict=True):
        logged = dict(pair.split(":") for pair in line.split(" | ")[1].split())
        assert float(logged["reward/mean"]) == pytest.approx(record["reward/mean"])
        assert float(logged["grad_norm"]) == pytest.approx(record["grad_norm"])


def test_the_oldest_checkpoints_go(tmp_path: Path) -> None:
    run("full", tmp_path, "num_steps=5", "save_every_n_steps=2", "checkpointer.keep_last_n_checkpoints=2")
    assert sorted(path.name for path in tmp_path.glob("step_*")) == ["step_4", "step_5"]


def test_dropped_prompts_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sums of one or two digits are 4 to 6 tokens long with their sign and the equals sign."""
    recipe = run("full", tmp_path, "num_steps=1", "max_prompt_tokens=5", "dataset.size=2000")
    dropped = recipe.prompts.dropped_prompts
    assert 0 < dropped < 2000
    assert f"dropped {dropped} training prompts over 5 tokens" in capsys.readouterr().out
