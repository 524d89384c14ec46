"""The same update on any number of ranks, whatever is cut and gathered how."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rank_runs import on_ranks
from rank_work import runs
from recipe_runs import metrics, rewards, run, set_up, weights
from torch import Tensor

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
LAYOUTS = {
    "custom_sharded_layers": ("custom_sharded_layers=[tok_embeddings, output]",),
    "kept_gathered": ("fsdp_reshard_after_forward=false", "loss.kl_coeff=0.1", "ppo_epochs=2"),
    "replicated": ("data_parallel_replicate=2", "loss.kl_coeff=0.1"),
    "hybrid": ("data_parallel_replicate=2", "data_parallel_shard=2", "ppo_epochs=2"),
}
UNTIED = (
    "model={_component_: torchtune.models.llama3.llama3, vocab_size: 112, num_layers: 4, num_heads: 4, "
    "num_kv_heads: 2, embed_dim: 128, intermediate_dim: 320, max_seq_len: 128, rope_base: 10000}"
)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Tensor]]:
    """What is trained after three steps on one device, by case; ``start-<kind>``: before them."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("alone")
    after = {
        name: weights(run(kind, folder / name, *FIXED, *UPDATES[updates]))
        for name, (kind, updates) in CASES.items()
    }
    starts = {f"start-{kind}": weights(set_up(kind, folder / f"s{kind}", *FIXED)) for kind in ("full", "lora")}
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
