"""Padding, shifting and masking: the only place where ragged lists become tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from grpo.types import Scored, TrainBatch


def left_pad(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Prompts for generation: pad on the left, so that all rows end in the same column.

    Returns:
        tokens [P, L] int64 and mask [P, L] bool, True on real tokens. The mask comes from
        lengths, never from token values: pad may equal a token that the prompt uses.
    """
    width = max(map(len, rows))
    tokens = torch.full((len(rows), width), pad_id)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for i, row in enumerate(rows):
        tokens[i, width - len(row) :] = torch.tensor(row)
        mask[i, width - len(row) :] = True
    return tokens, mask


def right_pad(rows: Sequence[Sequence[float]], pad: float, *, dtype: torch.dtype = torch.int64) -> Tensor:
    """[N, longest row] with ``pad`` behind each row."""
    padded = torch.full((len(rows), max(map(len, rows), default=0)), pad, dtype=dtype)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = torch.tensor(row, dtype=dtype)
    return padded


def position_ids(mask: Tensor) -> Tensor:
    """[B, L] position of each real token in its own row; 0 on padding before the first one."""
    return (mask.long().cumsum(-1) - 1).clamp(min=0)


def chunks(num_rows: int, size: int) -> list[slice]:
    """Slices of at most ``size`` rows over the rows that are there; the last may be smaller."""
    return [slice(i, min(i + size, num_rows)) for i in range(0, num_rows, size)]


def pack(scored: Scored, advantages: Tensor, pad_id: int, *, keep_flat: bool) -> TrainBatch:
    """Turn scored rollouts into the tensors of one update.

    Left out are sequences without a reward and sequences without a trained token. With
    ``keep_flat=False``, sequences of advantage 0 are left out as well: without a KL or an
    entropy term their gradient is 0. They still count in the normalisers, so that leaving
    them out changes nothing but the time.

    Args:
        scored: N sequences.
        advantages: [N].
        pad_id: any id the embedding knows; padding is masked.
        keep_flat: True when the loss has a term that does not scale with the advantage.

    Returns:
        B <= N rows, longest first, so that micro-batches hold rows of like length. B is 0 when
        nothing can be learnt from this batch.
    """
    rollouts = scored.rollouts
    trained = [sum(mask) for mask in rollouts.loss_mask]
    counted = [i for i in range(len(scored)) if scored.rewards[i] is not None and trained[i] > 0]
    kept = [i for i in counted if keep_flat or advantages[i] != 0]
    kept.sort(key=lambda i: -len(rollouts.prompt_ids[i]) - len(rollouts.completion_ids[i]))

    def column(completion: Sequence[Sequence[float]]) -> list[list[float]]:
        return [[0] * len(rollouts.prompt_ids[i]) + list(completion[i]) for i in kept]

    tokens = [[*rollouts.prompt_ids[i], *rollouts.completion_ids[i]] for i in kept]
    return TrainBatch(
        tokens=right_pad(tokens, pad_id),
        loss_mask=right_pad(column(rollouts.loss_mask), 0, dtype=torch.bool),
        lengths=torch.tensor([len(row) for row in tokens]),
        advantages=advantages[kept].float(),
        sampler_logprobs=right_pad(column(rollouts.sampler_logprobs), 0.0, dtype=torch.float32),
        num_sequences=float(len(counted)),
        num_tokens=float(sum(trained[i] for i in counted)),
    )
