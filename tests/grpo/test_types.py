"""Joining what several ranks or batches made, and slices for ranks without work."""

from __future__ import annotations

import pytest
import torch

from grpo.loss import PolicyObjective
from grpo.types import Rollouts, Scored, Task, TrainBatch, join_rollouts, join_scored
from tests.grpo.conftest import make_rollouts


def rollouts_of(*numbers: int) -> Rollouts:
    """One sequence for each number, which is in every column of it."""
    return make_rollouts(
        [[n] for n in numbers],
        [[n, n] for n in numbers],
        list(numbers),
        loss_mask=[[n % 2, 1] for n in numbers],
        sampler_logprobs=[[-1.0 * n, -0.5 * n] for n in numbers],
        finish_reasons=["length" if n % 2 else "stop" for n in numbers],
        texts=[f"text {n}" for n in numbers],
        tasks=[Task(id=str(n), question="?") for n in numbers],
        prefills=[f"prefill {n}" for n in numbers],
        undefined_tokens=list(numbers),
        policy_version=6,
    )


def scored_of(*numbers: int, errors: int = 0) -> Scored:
    return Scored(
        rollouts=rollouts_of(*numbers),
        rewards=[None if n == 3 else n / 10 for n in numbers],
        components={"a": [1.0 * n for n in numbers], "b": [None if n == 3 else 0.0 for n in numbers]},
        success=[None if n == 3 else n > 2 for n in numbers],
        errors=errors,
    )


@pytest.mark.parametrize(
    "cut", [[(1, 2, 3, 4)], [(1,), (2, 3), (4,)], [(), (1, 2), (), (3, 4)], [(1, 2, 3, 4), ()]]
)
def test_joined_rollouts_are_in_order_whatever_they_were_cut_into(cut: list[tuple[int, ...]]) -> None:
    assert join_rollouts([rollouts_of(*numbers) for numbers in cut]) == rollouts_of(1, 2, 3, 4)


def test_joined_scores_stay_with_their_rollouts_and_errors_add_up() -> None:
    parts = [scored_of(1, 2, errors=2), scored_of(errors=0), scored_of(3, 4, errors=1)]
    assert join_scored(parts) == scored_of(1, 2, 3, 4, errors=3)


def test_components_are_joined_by_name() -> None:
    first, second = scored_of(1), scored_of(2)
    turned = Scored(
        rollouts=second.rollouts,
        rewards=second.rewards,
        components=dict(reversed(second.components.items())),
        success=second.success,
    )
    assert join_scored([first, turned]) == scored_of(1, 2)


def train_batch(rows: int, **fields: object) -> TrainBatch:
    """Rows of 4 tokens of which the last two are trained, in an update of 10 sequences and 20 tokens."""
    mask = torch.zeros(rows, 4, dtype=torch.bool)
    mask[:, 2:] = True
    settings = {
        "tokens": torch.arange(4.0).long().expand(rows, 4),
        "loss_mask": mask,
        "lengths": torch.full((rows,), 4),
        "advantages": torch.ones(rows),
        "sampler_logprobs": torch.full((rows, 4), -1.0),
        "num_sequences": 10.0,
        "num_tokens": 20.0,
    }
    return TrainBatch(**settings | fields)


@pytest.mark.parametrize(
    ("rows", "size", "at_least", "lengths", "idle"),
    [
        (5, 2, 0, [2, 2, 1], 0),
        (5, 2, 3, [2, 2, 1], 0),
        (5, 2, 2, [2, 2, 1], 0),
        (5, 2, 5, [2, 2, 1, 1, 1], 2),
        (0, 2, 0, [], 0),
        (0, 2, 2, [1, 1], 2),
    ],
)
def test_a_split_has_as_many_slices_as_the_busiest_rank_needs(
    rows: int, size: int, at_least: int, lengths: list[int], idle: int
) -> None:
    batch = train_batch(rows)
    slices = batch.split(size, at_least)
    assert [len(part) for part in slices] == lengths
    assert batch.passes(size) == len(lengths) - idle
    assert [bool(part.loss_mask.any()) for part in slices] == [True] * (len(lengths) - idle) + [False] * idle
    for part in slices:
        assert (part.num_sequences, part.num_tokens) == (10.0, 20.0)


@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize("logprobs", ["none", "both"])
def test_a_slice_without_work_is_one_token_that_is_not_trained(rows: int, logprobs: str) -> None:
    given = torch.full((rows, 4), -2.0) if logprobs == "both" else None
    part = train_batch(rows, old_logprobs=given, ref_logprobs=given).split(4, 3)[-1]
    assert part.tokens.shape == (1, 1) and part.lengths.tolist() == [1]
    assert part.tokens.dtype == torch.int64  # an embedding takes it
    assert part.loss_mask.tolist() == [[False]]
    for name in ("old_logprobs", "ref_logprobs"):
        value = getattr(part, name)
        assert value is None if given is None else value.shape == (1, 1)


def test_a_slice_without_work_adds_nothing_to_loss_gradient_or_metrics() -> None:
    batch = train_batch(0, ref_logprobs=torch.zeros(0, 4), old_logprobs=torch.zeros(0, 4))
    [idle] = batch.split(4, 1)
    logprobs = torch.full((1, 1), -3.0, requires_grad=True)
    output = PolicyObjective(kl_coeff=0.5)(logprobs, idle)
    output.loss.backward()
    assert output.loss.item() == 0 and logprobs.grad.item() == 0
    assert output.sums["clip_fraction"][1] == output.sums["approx_kl"][1] == 0  # counts of tokens
    assert {float(total) for total, _ in output.sums.values()} == {0.0}
    assert output.maxima["ratio/max"] == 0
