"""Shares of the work, sums over ranks, and seeds."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from grpo.advantage import GroupAdvantage
from grpo.config import ConfigError
from grpo.distributed import SOLO, Ranks, local_world_size, rank_seed, start_ranks
from grpo.distributed.ranks import unused_part
from grpo.loss import aggregation_weights
from grpo.types import TrainBatch
from tests.grpo.conftest import prompt_batch
from tests.recipes.rank_runs import on_ranks


def full_batch(tokens: int) -> TrainBatch:
    """One row of that many tokens, all of them trained, with the normalisers of this row alone."""
    return TrainBatch(
        tokens=torch.zeros(1, tokens, dtype=torch.long),
        loss_mask=torch.ones(1, tokens, dtype=torch.bool),
        lengths=torch.tensor([tokens]),
        advantages=torch.zeros(1),
        sampler_logprobs=torch.zeros(1, tokens),
        num_sequences=1.0,
        num_tokens=float(tokens),
    )


@pytest.mark.parametrize(
    ("prompts", "size", "counts"),
    [(7, 1, [7]), (7, 2, [4, 3]), (7, 4, [2, 2, 2, 1]), (8, 4, [2, 2, 2, 2]), (2, 3, [1, 1, 0])],
)
def test_shares_are_consecutive_cover_all_prompts_and_differ_by_at_most_one(
    prompts: int, size: int, counts: list[int]
) -> None:
    batch = prompt_batch(*([i + 1] for i in range(prompts)))
    shares = [Ranks(rank=rank, size=size).share(batch) for rank in range(size)]
    assert [len(share) for share in shares] == counts
    for column in ("prompt_ids", "tasks", "group_ids", "prefills"):
        assert [row for share in shares for row in getattr(share, column)] == getattr(batch, column)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_adv_13_all_samples_of_a_prompt_are_judged_on_one_rank(size: int) -> None:
    """Advantages of shares are those of the whole batch: no statistic of a group needs another rank."""
    rewards = {0: [1.0, 1.0, 0.0, 0.0], 1: [3.0, 0.0, 0.0, 1.0], 2: [0.0, 0.0, 0.0, 0.0]}
    batch = prompt_batch(*([i + 1] for i in rewards))
    found: list[float] = []
    for rank in range(size):
        groups = Ranks(rank=rank, size=size).share(batch).group_ids
        values = [reward for group in groups for reward in rewards[group]]
        ids = [group for group in groups for _ in rewards[group]]
        found += GroupAdvantage(scale="none")(values, ids).tolist()
    assert found == [0.5, 0.5, -0.5, -0.5, 2, -1, -1, 0, 0, 0, 0, 0]


def test_a_rank_alone_sums_nothing_and_needs_no_process_group() -> None:
    assert not dist.is_initialized()
    assert SOLO.is_main
    assert SOLO.sums([1.5, 2.0]) == SOLO.maxima([1.5, 2.0]) == [1.5, 2.0]
    assert (SOLO.sum(1.5), SOLO.min(1.5), SOLO.max(3)) == (1.5, 1.5, 3)
    assert SOLO.any(True) is True and SOLO.any(False) is False
    assert SOLO.gather("a") == ["a"] and SOLO.from_main("a") == "a"
    batch = full_batch(3)
    totals = SOLO.update_totals(batch)
    assert (totals.num_sequences, totals.num_tokens) == (1.0, 3.0)
    prompts = prompt_batch([1], [2])
    assert SOLO.share(prompts) == prompts
    SOLO.wait_for_all()
    SOLO.close()


def what_a_rank_hears() -> dict[str, Any]:
    """Every way in which ranks talk, and what this one learns of the other."""
    if os.environ["RANK"] == "1":
        os.environ["TORCHELASTIC_RESTART_COUNT"] = "1"
    ranks = start_ranks("cpu")
    me = ranks.rank
    tokens, loss_sum = ((10, 10.0), (30, 60.0))[me]
    batch = ranks.update_totals(full_batch(tokens))
    weights = aggregation_weights(batch, "token_mean", None)
    heard = {
        "place": (me, ranks.size, ranks.is_main),
        "pid": os.getpid(),
        "neighbours": ranks.neighbours,
        "restarted": ranks.restarted,
        "sums": ranks.sums([1.0 + me, 0.1]),
        "large": ranks.sum(2.0**24 + me),
        "maxima": ranks.maxima([1.0 - me, -5.0 + me]),
        "max": ranks.max(3 + me),
        "min": ranks.min(3.5 + me),
        "any": [ranks.any(flag) for flag in (False, me == 1, True)],
        "gathered": ranks.gather({"rank": me}),
        "from_main": ranks.from_main(f"said by {me}"),
        "normalisers": (batch.num_sequences, batch.num_tokens),
        "loss": ranks.sum(float((loss_sum / tokens * weights).sum())),
    }
    ranks.wait_for_all()
    ranks.close()
    heard["left"] = not dist.is_initialized()
    return heard


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """By rank, what each of two heard."""
    return on_ranks(2, tmp_path_factory.mktemp("two"), what_a_rank_hears)


def test_ranks_know_their_place_and_their_neighbours(heard: list[dict[str, Any]]) -> None:
    assert [of_rank["place"] for of_rank in heard] == [(0, 2, True), (1, 2, False)]
    assert [of_rank["neighbours"] for of_rank in heard] == [[heard[1]["pid"]], [heard[0]["pid"]]]
    assert all(of_rank["left"] for of_rank in heard)


def test_a_restart_that_one_launcher_counts_is_one_for_all_ranks(heard: list[dict[str, Any]]) -> None:
    assert [of_rank["restarted"] for of_rank in heard] == [True, True]


def test_ranks_that_start_again_do_not_read_what_earlier_ones_left_in_the_store() -> None:
    """Whichever comes first; every start leaves its keys, as torchrun's store keeps them."""
    store = dist.HashStore()

    def start(attempt: int, rank: int, delay: float) -> str:
        time.sleep(delay)
        part = unused_part(store, rank, 3)
        if rank == 0:
            part.set("address", f"of attempt {attempt}")
        return part.get("address").decode()

    for attempt, delays in enumerate([(0, 0, 0), (0.2, 0, 0.1), (0, 0.2, 0.1), (0.2, 0.1, 0)]):
        with ThreadPoolExecutor(3) as threads:
            found = list(threads.map(start, [attempt] * 3, range(3), delays))
        assert found == [f"of attempt {attempt}"] * 3


def test_a_rank_does_not_wait_for_ever_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo.distributed.ranks.TIMEOUT", timedelta(seconds=0.1))
    store = dist.HashStore()
    store.set("part", "left")
    with pytest.raises(TimeoutError, match="rank 1 of 2 waited for the others longer than 0:00:00.1"):
        unused_part(store, 1, 2)


def test_every_rank_hears_the_same_sums_and_extremes(heard: list[dict[str, Any]]) -> None:
    for of_rank in heard:
        assert of_rank["sums"] == [3.0, 0.2]
        assert of_rank["large"] == 2.0**25 + 1  # one more than float32 can tell
        assert of_rank["maxima"] == [1.0, -4.0]
        assert (of_rank["max"], of_rank["min"]) == (4, 3.5)
        assert of_rank["any"] == [False, True, True]


def test_only_rank_0_gathers_and_all_hear_rank_0(heard: list[dict[str, Any]]) -> None:
    assert [of_rank["gathered"] for of_rank in heard] == [[{"rank": 0}, {"rank": 1}], []]
    assert [of_rank["from_main"] for of_rank in heard] == ["said by 0", "said by 0"]


def test_loss_13_each_rank_divides_by_the_tokens_of_all(heard: list[dict[str, Any]]) -> None:
    for of_rank in heard:
        assert of_rank["normalisers"] == (2.0, 40.0)
        assert of_rank["loss"] == pytest.approx(1.75)


def test_without_torchrun_a_process_is_the_only_rank(alone: Ranks) -> None:
    assert (alone.rank, alone.size, alone.device) == (0, 1, torch.device("cpu"))
    assert not alone.restarted
    assert alone.neighbours == [] and dist.get_world_size() == 1
    alone.close()
    assert not dist.is_initialized()


def test_more_ranks_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(ConfigError) as caught:
        start_ranks("cuda")
    assert str(caught.value) == (
        "--nproc_per_node: 2 ranks on this machine, torch sees 1 cuda devices; expected one for each"
    )
    assert not dist.is_initialized()


def test_torchrun_says_how_many_ranks_are_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert local_world_size() == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert local_world_size() == 4


def test_rank_0_has_the_seed_of_the_config() -> None:
    assert [rank_seed(seed, 0) for seed in (0, 1, 2**32 - 1)] == [0, 1, 2**32 - 1]


def test_ranks_of_near_seeds_have_seeds_of_their_own_in_32_bits() -> None:
    seeds = [rank_seed(seed, rank) for seed in range(50) for rank in range(50)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**32 for seed in seeds)


def test_the_seed_of_a_rank_is_the_same_in_every_process() -> None:
    """The first four bytes of `printf 'seed 0, rank 1' | sha256sum`, for good."""
    assert rank_seed(0, 1) == 0x7E1EAD1E
