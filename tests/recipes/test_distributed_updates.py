"""The same update on any number of ranks, whatever is cut and gathered how."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from rank_runs import on_ranks
from rank_work import runs, runs_without_inductor
from recipe_runs import EVAL, metrics, records, rewards, run, set_up, weights
from torch import Tensor

from grpo.models import load_hf_state_dict, read_hf_config, save_hf_weights, tiny_model_dir
from grpo.models.tiny_model import TINY_SIZES

# Fixed rollouts: what is compared are updates alone. Seven prompts are unequal shares for two and for
# four ranks, and groups without spread make the work of the ranks more unequal still.
FIXED = (
    "engine={_component_: recipe_parts.Scripted}",
    rewards({"_component_": "recipe_parts.draws_a_lot", "success": True}),
    "batch_size=7",
    "micro_batch_size=6",
)
# AdamW's first steps turn rounding errors of tiny gradients into whole steps; SGD leaves them tiny.
SGD = "optimizer={_component_: torch.optim.SGD, lr: 0.1}"
UPDATES = {
    "plain": (SGD,),
    "kl": (SGD, "loss.kl_coeff=0.1"),
    "accumulation": (SGD, "gradient_accumulation_steps=2", "micro_batch_size=3"),
    "ppo_epochs": (SGD, "ppo_epochs=2"),
    "all_adamw": (
        "optimizer.lr=1e-5",
        *("loss.kl_coeff=0.1", "ppo_epochs=2", "gradient_accumulation_steps=2"),
        "enable_activation_checkpointing=true",
    ),
}
CASES = {f"{kind}-{name}": (kind, name) for kind in ("full", "lora") for name in UPDATES}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Tensor]]:
    """What is trained after three steps on one device, by case; ``start-<kind>``: before them."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("alone")
    after = {
        name: weights(run(kind, folder / name, *FIXED, *UPDATES[updates]))
        for name, (kind, updates) in CASES.items()
    }
    starts = {
        f"start-{kind}": weights(set_up(kind, folder / f"start_{kind}", *FIXED)) for kind in ("full", "lora")
    }
    return after | starts


@pytest.fixture(scope="module", params=[2, 4])
def together(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[int, Path, list[dict[str, dict[str, Tensor]]]]:
    """Number of ranks, folder, and by rank what is trained after the same steps."""
    folder = tmp_path_factory.mktemp(f"ranks_{request.param}")
    cases = {
        name: (kind, folder / name, (*FIXED, *UPDATES[updates])) for name, (kind, updates) in CASES.items()
    }
    return request.param, folder, on_ranks(request.param, folder / "results", runs, cases)


def farthest(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    return max((one[name] - other[name]).abs().max().item() for name in one)


@pytest.mark.parametrize("name", CASES)
def test_loss_13_parameters_do_not_depend_on_the_number_of_ranks(
    name: str, alone: dict, together: tuple[int, Path, list[dict]]
) -> None:
    size, folder, by_rank = together
    kind, _ = CASES[name]
    assert farthest(alone[f"start-{kind}"], alone[name]) > 1e-5
    for of_rank in by_rank:
        assert farthest(alone[name], of_rank[name]) < 1e-6
    assert [line["skipped_updates"] for line in metrics(folder / name)] == [0, 0, 0]


# How the weights lie on four ranks, and the parts that are gathered on their own.
LAYOUTS = {
    "kept_gathered": ("fsdp_reshard_after_forward=false",),
    "copies": ("data_parallel_replicate=4", "data_parallel_shard=1"),
    "hybrid": ("data_parallel_replicate=2",),
    "own_units": ("custom_sharded_layers=[tok_embeddings, output]",),
}


@pytest.fixture
def untied(tmp_path: Path) -> tuple[str, str]:
    """The overrides for a model whose output is not its embedding."""
    folder = tmp_path / "untied"
    shutil.copytree(tiny_model_dir(), folder)
    config = {**read_hf_config("tiny"), "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    stored = load_hf_state_dict("tiny")
    save_hf_weights(folder, stored | {"output.weight": 0.9 * stored["tok_embeddings.weight"]}, config)
    sizes = {name: value for name, value in TINY_SIZES.items() if name != "rope_base"}
    builder = {"_component_": "torchtune.models.llama3.llama3", **sizes, "max_seq_len": 128}
    return f"model={json.dumps(builder | {'rope_base': 10_000})}", f"checkpointer.checkpoint_dir={folder}"


def test_parameters_do_not_depend_on_how_the_weights_lie(untied: tuple[str, str], tmp_path: Path) -> None:
    overrides = (*untied, *FIXED, SGD, "loss.kl_coeff=0.1", "ppo_epochs=2")
    alone = weights(run("full", tmp_path / "alone", *overrides))
    assert "output.weight" in alone
    cases = {name: ("full", tmp_path / name, (*overrides, *layout)) for name, layout in LAYOUTS.items()}
    by_rank = on_ranks(4, tmp_path / "results", runs, cases)
    for name in LAYOUTS:
        assert farthest(alone, by_rank[0][name]) < 1e-6, name


def test_one_rank_is_the_single_device_recipe(kind: str, tmp_path: Path) -> None:
    """Sample for sample, with weights that are cut into one share."""
    single = run(kind, tmp_path / "single", SGD, *EVAL)
    [of_rank] = on_ranks(1, tmp_path / "results", runs, {"one": (kind, tmp_path / "one", (SGD, *EVAL))})
    assert farthest(weights(single), of_rank["one"]) < 1e-6
    files = [(tmp_path / name / "rollouts.jsonl").read_text() for name in ("single", "one")]
    assert files[0] == files[1]
    evaluated = [records(tmp_path / name / "metrics.jsonl")[0] for name in ("single", "one")]
    assert evaluated[0] == evaluated[1] and evaluated[0]["eval/tasks"] == 6


def test_bf16_trains_float32_shares(kind: str, tmp_path: Path) -> None:
    overrides = ("dtype=bf16", "loss.kl_coeff=0.05", "batch_size=3", "grpo_samples=4", SGD)
    by_rank = on_ranks(2, tmp_path / "results", runs, {"bf16": (kind, tmp_path / "bf16", overrides)})
    assert {value.dtype for value in by_rank[0]["bf16"].values()} == {torch.float32}
    start = weights(set_up(kind, tmp_path / "start"))
    assert 0 < farthest(start, by_rank[0]["bf16"]) < 0.1
    for line in metrics(tmp_path / "bf16"):
        assert line["sampler_gap/mean"] < 0.05 and 0 < line["grad_norm"] < 100


def test_compiled_layers_are_cut_into_shares_as_well(tmp_path: Path) -> None:
    cases = {
        "eager": ("full", tmp_path / "eager", (*FIXED, SGD)),
        "compiled": ("full", tmp_path / "compiled", (*FIXED, SGD, "compile=true")),
    }
    [after, _] = on_ranks(2, tmp_path / "results", runs_without_inductor, cases)
    assert farthest(after["eager"], after["compiled"]) < 1e-5


def test_a_batch_that_is_flat_on_all_ranks_skips_the_update(tmp_path: Path) -> None:
    """And one that is flat on some of them does not hang: the others' work is shared."""
    flat = (rewards({"_component_": "recipe_parts.constant", "success": True}), "optimizer.weight_decay=0.1")
    by_rank = on_ranks(2, tmp_path / "results", runs, {"flat": ("full", tmp_path / "flat", flat)})
    assert [line["skipped_updates"] for line in metrics(tmp_path / "flat")] == [1, 1, 1]
    assert farthest(weights(set_up("full", tmp_path / "start")), by_rank[1]["flat"]) == 0
