"""Padding, masks and normalisers, from ragged lists to tensors."""

from __future__ import annotations

import pytest
import torch

from grpo.batching import chunks, left_pad, pack, position_ids, right_pad
from grpo.types import Scored
from tests.grpo.conftest import make_rollouts


def scored(rollouts, rewards):
    return Scored(rollouts=rollouts, rewards=rewards, components={}, success=[None] * len(rewards))


def test_gen_01_chunks_of_different_length_are_padded_together() -> None:
    rows = [[1] * 512] * 16 + [[1] * 300] * 16
    n = len(rows)
    batch = pack(scored(make_rollouts([[5]] * n, rows), [1.0] * n), torch.ones(n), 0, keep_flat=True)
    width = 1 + 512
    assert batch.tokens.shape == batch.loss_mask.shape == batch.sampler_logprobs.shape == (32, width)
    assert (batch.tokens == 0).sum() == 3392  # 16 * (512 - 300): the only pad cells
    padding = torch.arange(width) >= batch.lengths[:, None]
    assert padding.sum() == 3392 and not (batch.loss_mask & padding).any()


def test_gen_02_left_padded_prompts_share_one_response_slice() -> None:
    tokens, mask = left_pad([[1, 2, 3], [7]], pad_id=0)
    assert tokens.tolist() == [[1, 2, 3], [0, 0, 7]]
    assert mask.tolist() == [[True] * 3, [False, False, True]]
    responses = right_pad([[4, 5], [6]], 0)
    joined = torch.cat([tokens, responses], dim=1)
    assert joined.tolist() == [[1, 2, 3, 4, 5], [0, 0, 7, 6, 0]]
    assert joined[:, tokens.shape[1] :].tolist() == responses.tolist()


def test_gen_07_masks_come_from_lengths_when_pad_equals_eos() -> None:
    eos = pad = 2
    rollouts = make_rollouts([[eos, 5], [eos, 5]], [[6, 7, eos], [6, 7, 8, 9, eos]])
    batch = pack(scored(rollouts, [0.0, 1.0]), torch.tensor([-1.0, 1.0]), pad, keep_flat=False)
    short = batch.lengths.argmin()
    assert batch.tokens[short].tolist() == [2, 5, 6, 7, 2, 2, 2]
    assert batch.loss_mask[short].int().tolist() == [0, 0, 1, 1, 1, 0, 0]
    _, attention = left_pad([[eos, 5]], pad)
    assert attention.tolist() == [[True, True]]


def test_gen_08_positions_are_each_rows_own() -> None:
    mask = torch.tensor([[0, 0, 0, 1, 1], [1, 1, 1, 1, 1]]).bool()
    assert position_ids(mask).tolist() == [[0, 0, 0, 0, 1], [0, 1, 2, 3, 4]]
    assert mask.sum(-1).tolist() == [2, 5]  # the next position is the row's own length


@pytest.mark.parametrize(("rows", "size", "expected"), [(3, 2, [2, 1]), (5, 2, [2, 2, 1]), (1, 4, [1])])
def test_gen_11_chunks_cover_the_rows_that_are_there(rows: int, size: int, expected: list[int]) -> None:
    assert [s.stop - s.start for s in chunks(rows, size)] == expected


def test_gen_14_what_is_packed_is_what_was_sampled() -> None:
    rollouts = make_rollouts([[1]], [[5, 6, 7]], finish_reasons=["length"])
    batch = pack(scored(rollouts, [1.0]), torch.ones(1), 99, keep_flat=True)
    assert batch.tokens.tolist() == [[1, 5, 6, 7]]


def test_flat_and_unscored_sequences_leave_but_flat_ones_count() -> None:
    rollouts = make_rollouts([[1], [1], [3], [3]], [[4, 5], [6], [7, 8], [9]], [0, 0, 1, 1])
    advantages = torch.tensor([1.0, -1.0, 0.0, 0.0])
    batch = pack(scored(rollouts, [1.0, 0.0, 1.0, None]), advantages, 0, keep_flat=False)
    assert batch.tokens.tolist() == [[1, 4, 5], [1, 6, 0]]
    assert (batch.num_sequences, batch.num_tokens) == (3.0, 5.0)
    with_flat = pack(scored(rollouts, [1.0, 0.0, 1.0, None]), advantages, 0, keep_flat=True)
    assert len(with_flat) == 3 and with_flat.num_tokens == 5.0


def test_a_batch_without_signal_is_empty_and_splits_into_nothing() -> None:
    batch = pack(scored(make_rollouts([[1]], [[4]]), [1.0]), torch.zeros(1), 0, keep_flat=False)
    assert len(batch) == 0 and batch.split(4) == [] and batch.to("cpu").num_sequences == 1.0


def test_masked_tokens_of_an_environment_are_not_trained_and_not_counted() -> None:
    rollouts = make_rollouts([[1]], [[4, 5, 6, 7]], loss_mask=[[1, 0, 0, 1]])
    batch = pack(scored(rollouts, [1.0]), torch.ones(1), 0, keep_flat=True)
    assert batch.loss_mask.int().tolist() == [[0, 1, 0, 0, 1]] and batch.num_tokens == 2.0


def test_split_trims_to_the_longest_row_and_keeps_the_normaliser() -> None:
    rollouts = make_rollouts([[1]] * 3, [[4], [5, 6, 7], [8, 9]])
    batch = pack(scored(rollouts, [1.0, 2.0, 3.0]), torch.ones(3), 0, keep_flat=True)
    parts = batch.split(2)
    assert [p.tokens.shape[1] for p in parts] == [4, 2]
    assert {p.num_tokens for p in parts} == {6.0}
    assert parts[1].tokens.tolist() == [[1, 4]]
