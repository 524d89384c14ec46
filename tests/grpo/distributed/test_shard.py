"""Meshes, what is gathered when, and gradients that are sums over ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from grpo.config import ConfigError
from grpo.distributed import Ranks, make_mesh, reshard, shard, start_ranks
from grpo.distributed.shard import units_of
from grpo.models.shares import share_of, whole_of
from tests.grpo.distributed.conftest import STACK, gathered, stack
from tests.recipes.rank_runs import on_ranks


@contextmanager
def one_of(size: int) -> Iterator[Ranks]:
    """The first rank, without the others: enough to see where it stands in a mesh."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    try:
        yield Ranks(size=size)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("size", "shares", "copies", "ranks", "names"),
    [
        (4, -1, 1, [0, 1, 2, 3], ("data_parallel_shard",)),
        (4, 4, 1, [0, 1, 2, 3], ("data_parallel_shard",)),
        (4, -1, 2, [[0, 1], [2, 3]], ("data_parallel_replicate", "data_parallel_shard")),
        (4, 1, 4, [[0], [1], [2], [3]], ("data_parallel_replicate", "data_parallel_shard")),
        (6, 3, 2, [[0, 1, 2], [3, 4, 5]], ("data_parallel_replicate", "data_parallel_shard")),
    ],
)
def test_neighbouring_ranks_share_a_copy(
    size: int, shares: int, copies: int, ranks: list, names: tuple[str, ...]
) -> None:
    with one_of(size) as me:
        mesh = make_mesh(me, shares, copies)
        assert mesh.mesh.tolist() == ranks
        assert mesh.mesh_dim_names == names


@pytest.mark.parametrize(
    ("size", "shares", "copies", "told"),
    [
        (4, 3, 1, "1 copies of 3 shares (data_parallel_shard) are not 4 ranks"),
        (4, 4, 2, "2 copies of 4 shares (data_parallel_shard) are not 4 ranks"),
        (4, -1, 3, "3 copies of 1 shares (data_parallel_shard) are not 4 ranks"),
        (1, -1, 2, "2 copies of 1 shares (data_parallel_shard) are not 1 ranks"),
    ],
)
def test_a_mesh_of_another_number_of_ranks_is_refused(size: int, shares: int, copies: int, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_mesh(Ranks(size=size), shares, copies)
    assert str(caught.value) == f"data_parallel_replicate: {told}"


def test_a_plain_model_has_no_units_and_nothing_to_let_go() -> None:
    model = stack()
    assert units_of(model) == []
    reshard(model)
    assert gathered(model) == STACK


def test_each_layer_and_each_named_part_is_a_unit_and_the_rest_is_the_root(alone: Ranks) -> None:
    model = stack()
    shard(model, model.layers, make_mesh(alone), others=[model.embed])
    assert units_of(model) == [model, model.embed, *model.layers]
    assert gathered(model) == set()


@pytest.mark.parametrize(
    ("reshard_after_forward", "kept"),
    [(True, {"embed.weight", "head.weight"}), (False, STACK)],
    ids=["let_go", "kept"],
)
def test_what_stays_gathered_for_the_backward_pass(
    reshard_after_forward: bool, kept: set[str], alone: Ranks
) -> None:
    """The root always, layers if asked; behind the backward pass, and behind ``reshard``, nothing."""
    model = stack()
    shard(model, model.layers, make_mesh(alone), reshard_after_forward=reshard_after_forward)
    tokens = torch.tensor([[1, 2]])
    output = model(tokens)
    assert gathered(model) == kept
    output.sum().backward()
    assert gathered(model) == set()
    with torch.no_grad():
        model(tokens)
    assert gathered(model) == kept
    reshard(model)
    assert gathered(model) == set()


def test_after_reshard_a_pass_uses_the_new_weights(alone: Ranks) -> None:
    model, tokens = stack(), torch.tensor([[1, 2]])
    shard(model, model.layers, make_mesh(alone))
    with torch.no_grad():
        before = model(tokens)
        reshard(model)
        share_of(model.head.weight).mul_(2)
        assert torch.allclose(model(tokens), 2 * before)


def test_bf16_is_gathered_and_computed_from_float32_shares(alone: Ranks) -> None:
    model = stack()
    shard(model, model.layers, make_mesh(alone), dtype=torch.bfloat16)
    seen: list[torch.dtype] = []
    model.head.register_forward_hook(lambda head, _, out: seen.extend([head.weight.dtype, out.dtype]))
    model(torch.tensor([[1, 2]])).sum().backward()
    assert seen == [torch.bfloat16, torch.bfloat16]
    assert {value.dtype for value in model.parameters()} == {torch.float32}
    assert {value.grad.dtype for value in model.parameters()} == {torch.float32}


TOKENS = torch.tensor([[1, 2, 3], [4, 5, 6], [0, 0, 1]])
TARGETS = torch.tensor([[0.5, -1.0, 2.0], [1.0, 0.0, -2.0], [3.0, 0.5, 0.5]])


def loss_of(model: nn.Module, rows: slice) -> Tensor:
    """This rank's part of the loss: the divisor counts the tokens of all rows."""
    return (model(TOKENS[rows]) - TARGETS[rows]).square().sum() / TOKENS.numel()


LAYOUTS = {
    "shares": {"data_parallel_shard": 2},
    "copies": {"data_parallel_shard": 1, "data_parallel_replicate": 2},
}


def step(ranks: Ranks, mesh: DeviceMesh) -> dict[str, dict[str, Tensor]]:
    """Whole gradients and parameters behind a step on two rows (rank 0) or one (rank 1)."""
    model = stack()
    shard(model, model.layers, mesh)
    loss_of(model, (slice(0, 2), slice(2, 3))[ranks.rank]).backward()
    gradients = {name: whole_of(value.grad) for name, value in model.named_parameters()}
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    after = {name: whole_of(value) for name, value in model.named_parameters()}
    return {"gradients": gradients, "after": after}


def bf16_gradient(ranks: Ranks, mesh: DeviceMesh) -> float:
    """Of one weight: 1 on rank 0 and 2**-9 on rank 1, each of them exact in bf16."""
    model = nn.Linear(1, 1, bias=False)
    shard(model, [], mesh, dtype=torch.bfloat16)
    model(torch.tensor([[(1.0, 2.0**-9)[ranks.rank]]])).sum().backward()
    return whole_of(model.weight.grad).item()


def gradients_on_a_rank() -> dict[str, Any]:
    ranks = start_ranks("cpu")
    meshes = {name: make_mesh(ranks, **layout) for name, layout in LAYOUTS.items()}
    found = {name: step(ranks, mesh) for name, mesh in meshes.items()}
    found["bf16"] = {name: bf16_gradient(ranks, mesh) for name, mesh in meshes.items()}
    ranks.close()
    return found


@pytest.fixture(scope="module")
def by_rank(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_ranks(2, tmp_path_factory.mktemp("two"), gradients_on_a_rank)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_loss_13_gradients_are_summed_over_ranks_and_not_averaged(
    layout: str, by_rank: list[dict[str, Any]]
) -> None:
    model = stack()
    loss_of(model, slice(0, 3)).backward()
    gradients = {name: value.grad.clone() for name, value in model.named_parameters()}
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    for of_rank in by_rank:
        for name, value in model.named_parameters():
            assert torch.allclose(of_rank[layout]["gradients"][name], gradients[name], atol=1e-6), name
            assert torch.allclose(of_rank[layout]["after"][name], value, atol=1e-6), name


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_of_bf16_are_summed_in_float32(layout: str, by_rank: list[dict[str, Any]]) -> None:
    assert [of_rank["bf16"][layout] for of_rank in by_rank] == [1 + 2.0**-9] * 2  # 1 in bf16
