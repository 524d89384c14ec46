"""A parameter's share: its rows, and that nothing but these rows is read to fill it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from grpo.distributed import Ranks, make_mesh, shard, start_ranks
from grpo.models import load_hf_state_dict
from grpo.models.shares import copy_share, rows_of, share_of, whole_of
from grpo.models.weights import StoredWeight
from grpo.policy import build_model, fill_model
from tests.recipes.rank_runs import on_ranks

TINY = {"_component_": "grpo.models.tiny"}
LORA = {"_component_": "grpo.models.lora_tiny", "lora_attn_modules": ["q_proj", "v_proj"], "lora_rank": 2}


def test_on_one_device_a_parameter_is_its_own_share() -> None:
    parameter = nn.Parameter(torch.zeros(3, 2))
    assert rows_of(parameter) == slice(0, 3)
    copy_share(parameter, torch.ones(3, 2))
    share_of(parameter)[0] = 2
    assert whole_of(parameter).tolist() == [[2, 2], [1, 1], [1, 1]]
    assert not whole_of(parameter).requires_grad


# Rows of a parameter, copies on four ranks, and first and last (exclusive) row of each rank.
CUTS = [
    (8, 1, [(0, 2), (2, 4), (4, 6), (6, 8)]),
    (7, 1, [(0, 2), (2, 4), (4, 6), (6, 7)]),
    (5, 1, [(0, 2), (2, 4), (4, 5), (5, 5)]),
    (1, 1, [(0, 1), (1, 1), (1, 1), (1, 1)]),
    (5, 2, [(0, 3), (3, 5), (0, 3), (3, 5)]),
    (5, 4, [(0, 5), (0, 5), (0, 5), (0, 5)]),
]


def whole(rows: int) -> Tensor:
    return torch.arange(2.0 * rows).view(rows, 2)


def filled_shares() -> list[dict[str, Any]]:
    """What this rank of four holds in each case: rows, share, and the whole that all make of it."""
    ranks = start_ranks("cpu")
    found = []
    for rows, copies, _ in CUTS:
        module = nn.Linear(2, rows, bias=False)
        shard(module, [], make_mesh(ranks, data_parallel_replicate=copies))
        copy_share(module.weight, whole(rows).bfloat16())
        mine = rows_of(module.weight)
        found.append(
            {
                "rows": (mine.start, mine.stop),
                "share": share_of(module.weight).clone(),
                "whole": whole_of(module.weight),
            }
        )
    ranks.close()
    return found


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    return on_ranks(4, tmp_path_factory.mktemp("four"), filled_shares)


@pytest.mark.parametrize("case", range(len(CUTS)), ids=[f"{rows}_rows_{n}_copies" for rows, n, _ in CUTS])
def test_a_share_is_filled_with_its_own_rows(case: int, filled: list[list[dict[str, Any]]]) -> None:
    """Even, uneven, none at all; and with copies, each of which is cut for itself."""
    rows, _, expected = CUTS[case]
    for of_rank, (start, stop) in zip(filled, expected, strict=True):
        found = of_rank[case]
        assert found["rows"] == (start, stop)
        assert found["share"].dtype == torch.float32  # the parameter's, not that of what was copied
        assert found["share"].tolist() == whole(rows)[start:stop].tolist()
        assert found["whole"].tolist() == whole(rows).tolist()


def sharded(builder: dict[str, Any], ranks: Ranks) -> nn.Module:
    """A model on the meta device, cut into shares."""
    model = build_model(builder, dtype="fp32")
    shard(model, model.layers, make_mesh(ranks))
    assert all(value.is_meta for value in model.parameters())
    return model


def filled_models() -> dict[str, Any]:
    """What this rank reads of a checkpoint, and what it holds of two models then."""
    read: dict[str, tuple[int, int]] = {}
    rows_of_file = StoredWeight.rows

    def rows(self: StoredWeight, wanted: slice) -> Tensor:
        assert self.stored_name not in read  # each weight once
        read[self.stored_name] = (wanted.start, wanted.stop)
        return rows_of_file(self, wanted)

    ranks = start_ranks("cpu")
    adapted = fill_model(sharded(LORA, ranks), "tiny", device="cpu", seed=5)
    StoredWeight.rows = rows
    plain = fill_model(sharded(TINY, ranks), "tiny", device="cpu")
    found = {"read": read}
    for name, model in {"plain": plain, "adapted": adapted}.items():
        found[name] = {
            key: (rows_of(value), share_of(value).clone()) for key, value in model.named_parameters()
        }
    ranks.close()
    return found


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """By rank, on three ranks, which cut most of the weights unevenly."""
    return on_ranks(3, tmp_path_factory.mktemp("three"), filled_models)


def test_a_rank_reads_its_rows_of_a_checkpoint_and_no_others(models: list[dict[str, Any]]) -> None:
    assert [of_rank["read"]["model.embed_tokens.weight"] for of_rank in models] == [
        (0, 38),
        (38, 76),
        (76, 112),
    ]
    for name in models[0]["read"]:
        starts, stops = zip(*(of_rank["read"][name] for of_rank in models), strict=True)
        assert starts == (0, *stops[:-1]), name  # each row is read once


def test_a_rank_holds_its_rows_of_every_weight(models: list[dict[str, Any]]) -> None:
    stored = load_hf_state_dict("tiny")
    for of_rank in models:
        assert of_rank["plain"].keys() == stored.keys()
        for name, (rows, share) in of_rank["plain"].items():
            assert torch.equal(share, stored[name][rows]), name


def test_new_adapters_do_not_depend_on_how_they_are_cut(models: list[dict[str, Any]]) -> None:
    """The two rows of an A are fewer than the ranks."""
    one_device = fill_model(build_model(LORA, dtype="fp32"), "tiny", device="cpu", seed=5)
    expected = dict(one_device.named_parameters())
    assert any("lora_a" in name and value.any() for name, value in expected.items())
    for of_rank in models:
        for name, (rows, share) in of_rank["adapted"].items():
            assert torch.equal(share, expected[name][rows]), name
