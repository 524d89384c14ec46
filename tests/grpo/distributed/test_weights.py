"""How a sampler gets at sharded weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from grpo.distributed import SOLO, WHOLE, Ranks, ShardedWeights, make_mesh, shard, start_ranks, weights
from grpo.models.shares import share_of
from tests.grpo.distributed.conftest import STACK, STACK_SIZE, gathered, stack
from tests.recipes.rank_runs import on_ranks

NEEDED = 4 * STACK_SIZE  # bytes of float32
OTHERS = {"embed.weight", "head.weight"}


def sharded(
    ranks: Ranks, gather_weights: str, dtype: torch.dtype | None = None
) -> tuple[nn.Module, ShardedWeights]:
    """A model whose layers and embedding are units of their own, its head in the root."""
    model = stack()
    shard(model, model.layers, make_mesh(ranks), others=[model.embed], dtype=dtype)
    return model, ShardedWeights(model, model.layers, ranks, dtype, gather_weights)


def test_a_whole_model_is_left_as_it_is() -> None:
    layer = nn.Linear(1, 1)
    with WHOLE.sampling():
        WHOLE.start_pass()
        with WHOLE.layer(layer):
            assert isinstance(layer.weight, nn.Parameter)


def test_always_gathers_everything_while_a_batch_is_sampled(alone: Ranks) -> None:
    model, access = sharded(alone, "always")
    for _ in range(2):
        with access.sampling():
            access.start_pass()
            assert gathered(model) == STACK
            with access.layer(model.layers[0]):
                pass
            assert gathered(model) == STACK
        assert gathered(model) == set()
    assert access.passes_joined == 0


def test_never_gathers_a_layer_for_its_part_of_a_pass(alone: Ranks) -> None:
    model, access = sharded(alone, "never")
    first, second = model.layers
    for _ in range(2):
        with access.sampling():
            access.start_pass()
            with access.layer(first):
                assert gathered(model) == OTHERS | {"layers.0.weight"}
            with access.layer(second):
                assert gathered(model) == OTHERS | {"layers.1.weight"}
            assert gathered(model) == OTHERS
        assert gathered(model) == set()


@pytest.mark.parametrize("mode", ["always", "never"])
def test_each_batch_is_sampled_with_the_weights_of_its_time(mode: str, alone: Ranks) -> None:
    model, access = sharded(alone, mode)
    for value in (1.0, 2.0):
        with torch.no_grad():
            for parameter in model.parameters():
                share_of(parameter).fill_(value)
        with access.sampling():
            assert model.embed.weight.eq(value).all() and model.head.weight.eq(value).all()
            for layer in model.layers:
                with access.layer(layer):
                    assert layer.weight.eq(value).all()


def test_a_part_of_its_own_is_let_go_again_in_training(alone: Ranks) -> None:
    """It stays gathered through all passes of the sampler, where it runs once a token."""
    model, access = sharded(alone, "never")
    tokens = torch.tensor([0])
    with access.sampling():
        model.embed(tokens)
        assert "embed.weight" in gathered(model)
    model.embed(tokens)
    assert "embed.weight" not in gathered(model)


@pytest.mark.parametrize(
    ("free", "dtype", "choice"),
    [
        (2 * NEEDED, None, "always"),
        (2 * NEEDED - 1, None, "never"),
        (NEEDED, torch.bfloat16, "always"),
        (NEEDED - 1, torch.bfloat16, "never"),
    ],
)
def test_auto_gathers_what_fits_into_half_of_the_free_memory(
    free: int,
    dtype: torch.dtype | None,
    choice: str,
    alone: Ranks,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(weights, "free_memory", lambda device: float(free))
    model, access = sharded(alone, "auto", dtype)
    for _ in range(2):
        with access.sampling():
            assert gathered(model) == (STACK if choice == "always" else OTHERS)
    told = "".join(capsys.readouterr())
    assert told.count(f"gather_weights=auto chose {choice}: ") == 1  # and not at each batch


def chosen_with(free: list[int]) -> tuple[bool, str]:
    """Whether this rank, with free memory of its own, gathers everything; and what it says."""
    said: list[str] = []
    ranks = start_ranks("cpu")
    weights.free_memory = lambda device: float(free[ranks.rank])
    weights.tqdm.write = said.append
    model, access = sharded(ranks, "auto")
    with access.sampling():
        everything = gathered(model) == STACK
    ranks.close()
    return everything, "".join(said)


def test_auto_goes_by_the_rank_that_has_least_and_one_rank_says_so(tmp_path: Path) -> None:
    [first, second] = on_ranks(2, tmp_path, chosen_with, [100 * NEEDED, NEEDED])
    assert (first[0], second[0]) == (False, False)
    assert "chose never" in first[1] and second[1] == ""


def test_ranks_of_a_machine_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_host_memory", lambda: 800.0)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert weights.free_memory(SOLO.device) == 800.0
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert weights.free_memory(SOLO.device) == 200.0


def test_the_free_memory_of_this_machine_is_found() -> None:
    assert 2**20 < weights.free_memory(SOLO.device) < 2**50
