"""Checkpoints of several ranks: by any number of them, sample for sample by the same."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_runs import on_ranks
from rank_work import runs, states
from recipe_runs import WEIGHTS, assert_same, metrics, records, run, saved_state, set_up, weights

TWO_STEPS = ("num_steps=2", "save_every_n_steps=1", "loss.kl_coeff=0.05", "batch_size=5")
RESUME = "resume_from_checkpoint=true"


@pytest.fixture(scope="module", params=["full", "lora"])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Any]:
    """Kind, folder, and by rank the state at the end, of two steps on two ranks."""
    folder = tmp_path_factory.mktemp(request.param)
    by_rank = on_ranks(2, folder / "results", states, request.param, folder / "out", TWO_STEPS, True)
    return request.param, folder / "out", by_rank


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_training_state_is_equal_on_any_number_of_ranks(
    size: int, saved: tuple[str, Path, Any], tmp_path: Path
) -> None:
    kind, out, [first, second] = saved
    shutil.copytree(out, tmp_path / "out")
    by_rank = on_ranks(
        size, tmp_path / "results", states, kind, tmp_path / "out", (*TWO_STEPS, RESUME), False
    )
    engines = [state.pop("engine") for state in by_rank]
    for state in by_rank:
        assert_same(state, {name: value for name, value in first.items() if name != "engine"})
    assert {engine["policy_version"] for engine in engines} == {2}
    if size == 2:
        assert_same(engines, [first["engine"], second["engine"]])
    streams = {engine["generator"].numpy().tobytes() for engine in engines}
    assert len(streams) == size  # GEN-17: no rank draws what another draws


def test_the_single_device_recipe_goes_on_from_two_ranks(
    saved: tuple[str, Path, Any], tmp_path: Path
) -> None:
    kind, out, [first, _] = saved
    shutil.copytree(out, tmp_path / "out")
    recipe = set_up(kind, tmp_path / "out", *TWO_STEPS, RESUME)
    assert recipe.steps_done == 2
    for name, value in weights(recipe).items():
        assert torch.equal(value, first["weights"][name]), name


def test_two_ranks_go_on_from_the_single_device_recipe(kind: str, tmp_path: Path) -> None:
    recipe = run(kind, tmp_path / "out", *TWO_STEPS)
    [state, _] = on_ranks(
        2, tmp_path / "results", states, kind, tmp_path / "out", (*TWO_STEPS, RESUME), False
    )
    for name, value in weights(recipe).items():
        assert torch.equal(value, state["weights"][name]), name
    saved = saved_state(tmp_path / "out" / "step_2")["optimizer"]
    assert_same(saved, state["optimizer"])


def test_res_14_a_resumed_run_is_the_same_run(saved: tuple[str, Path, Any], tmp_path: Path) -> None:
    """Sample for sample; step 3 of the stopped run was begun after a resume from step 2."""
    kind, out, _ = saved
    more = (*TWO_STEPS, "num_steps=3")
    shutil.copytree(out, tmp_path / "stopped")
    cases = {
        "straight": (kind, tmp_path / "straight", more),
        "stopped": (kind, tmp_path / "stopped", (*more, RESUME)),
    }
    on_ranks(2, tmp_path / "results", runs, cases)
    files = [(tmp_path / name / "rollouts.jsonl").read_bytes() for name in cases]
    assert files[0] == files[1] and len(records(tmp_path / "stopped" / "rollouts.jsonl")) == 3 * 5 * 8
    steps = [tmp_path / name / "step_3" for name in cases]
    assert (steps[0] / WEIGHTS[kind]).read_bytes() == (steps[1] / WEIGHTS[kind]).read_bytes()
    assert_same(*map(saved_state, steps))
    assert [line["step"] for line in metrics(tmp_path / "stopped")] == [1, 2, 3]


def test_gen_17_ranks_draw_different_samples_of_one_prompt(saved: tuple[str, Path, Any]) -> None:
    """Both before and after a resume: their generators' states are saved one by one."""
    _, out, [first, second] = saved
    assert not torch.equal(first["engine"]["generator"], second["engine"]["generator"])
    states = [torch.load(out / "step_1" / f"rank_{rank}.pt", weights_only=True) for rank in (0, 1)]
    generators = [state["parts"]["engine"]["generator"] for state in states]
    assert not torch.equal(*generators)
    assert not torch.equal(states[0]["rng"]["torch"], states[1]["rng"]["torch"])


def test_the_weights_are_those_of_one_device(saved: tuple[str, Path, Any]) -> None:
    """No name of FSDP, no padding: the folder is what a run on one device writes."""
    kind, out, _ = saved
    names = {path.name for path in (out / "step_2").iterdir()}
    assert WEIGHTS[kind] in names and {"rank_0.pt", "rank_1.pt", "optimizer", "manifest.json"} <= names
    assert ("config.json" in names) == (kind == "full")
