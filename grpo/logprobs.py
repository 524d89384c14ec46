"""Log-probabilities of chosen tokens without the whole [batch, length, vocabulary] of logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def tempered_log_softmax(logits: Tensor, temperature: float, undefined: Tensor | None = None) -> Tensor:
    """log softmax(logits / temperature) in float32, ids in ``undefined`` ruled out.

    The one definition that sampler, policy, old and reference logprobs share.

    Args:
        logits: [..., V].
        temperature: above 0.
        undefined: [V] bool, True where the tokenizer knows no token (their probability is 0).
    """
    logits = logits.float() / temperature
    if undefined is not None:
        logits = logits.masked_fill(undefined, -torch.inf)
    return logits.log_softmax(-1)


def entropy(log_probs: Tensor) -> Tensor:
    """Entropy in nats of the distributions [..., V]; ids of probability 0 add 0, not NaN."""
    return -(log_probs.exp() * log_probs.clamp(min=torch.finfo(log_probs.dtype).min)).sum(-1)


def target_logprobs(
    hidden: Tensor,
    tokens: Tensor,
    loss_mask: Tensor,
    output: Callable[[Tensor], Tensor],
    *,
    weights: Sequence[Tensor] = (),
    temperature: float = 1.0,
    undefined: Tensor | None = None,
    chunk_size: int = 512,
) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy at each trained token.

    Position t - 1 predicts token t; only positions that predict a trained token are projected
    to the vocabulary, ``chunk_size`` of them at a time. The backward pass projects each chunk
    again instead of keeping its logits, so memory peaks at a few times ``chunk_size * V`` floats.

    Args:
        hidden: [B, L, D], the decoder's last hidden states, after its final norm.
        tokens: [B, L].
        loss_mask: [B, L] bool; column 0 must be False (nothing predicts it).
        output: maps [R, D] to logits [R, V].
        weights: the parameters that ``output`` uses; those that require a gradient get one.
        temperature: the sampling temperature.
        undefined: [V] bool, see :func:`tempered_log_softmax`.
        chunk_size: positions per projection.

    Returns:
        logprobs [B, L] and entropies [B, L] (no gradient), float32, 0 outside the mask.
    """
    if loss_mask[:, 0].any():
        raise ValueError("loss_mask: the first token of a row is predicted by nothing and cannot be trained")

    def log_probs(hidden_chunk: Tensor) -> Tensor:
        return tempered_log_softmax(output(hidden_chunk), temperature, undefined)

    predicts = loss_mask[:, 1:]
    chosen, entropies = _ChunkedLogprobs.apply(
        hidden[:, :-1][predicts], tokens[:, 1:][predicts], log_probs, chunk_size, *weights
    )
    zeros = torch.zeros(loss_mask.shape, dtype=torch.float32, device=hidden.device)
    return zeros.masked_scatter(loss_mask, chosen), zeros.masked_scatter(loss_mask, entropies)


class _ChunkedLogprobs(torch.autograd.Function):
    """Chosen log-probabilities and entropies of R hidden states, a chunk at a time in both directions.

    Results go into tensors that were made before the first chunk. With ``torch.utils.checkpoint``
    each chunk would leave small results of its own between the large temporaries, and a CPU's heap
    would grow by a whole chunk each time.
    """

    @staticmethod
    def forward(ctx, hidden, targets, log_probs, chunk_size, *weights):  # noqa: ANN001, ANN205
        chosen = torch.empty(len(hidden), dtype=torch.float32, device=hidden.device)
        entropies = torch.empty_like(chosen)
        for rows in _slices(len(hidden), chunk_size):
            distribution = log_probs(hidden[rows])
            chosen[rows] = distribution.gather(-1, targets[rows, None])[:, 0]
            entropies[rows] = entropy(distribution)
        ctx.save_for_backward(hidden, targets, *weights)
        ctx.log_probs, ctx.chunk_size = log_probs, chunk_size
        device = hidden.device.type
        ctx.autocast = (device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))
        ctx.mark_non_differentiable(entropies)
        return chosen, entropies

    @staticmethod
    def backward(ctx, grad_chosen, _):  # noqa: ANN001, ANN205
        hidden, targets, *weights = ctx.saved_tensors
        wanted = [w for w, needed in zip(weights, ctx.needs_input_grad[4:], strict=True) if needed]
        grad_hidden = torch.empty_like(hidden)
        grad_weights = [torch.zeros_like(w) for w in wanted]
        device, dtype, enabled = ctx.autocast
        for rows in _slices(len(hidden), ctx.chunk_size):
            with torch.enable_grad(), torch.autocast(device, dtype, enabled):
                leaf = hidden[rows].detach().requires_grad_()
                chosen = ctx.log_probs(leaf).gather(-1, targets[rows, None])[:, 0]
            grads = torch.autograd.grad(chosen, [leaf, *wanted], grad_chosen[rows])
            grad_hidden[rows] = grads[0]
            for total, part in zip(grad_weights, grads[1:], strict=True):
                total += part
        by_weight = iter(grad_weights)
        needed = ctx.needs_input_grad[4:]
        return grad_hidden, None, None, None, *(next(by_weight) if n else None for n in needed)


def _slices(rows: int, size: int) -> list[slice]:
    return [slice(i, i + size) for i in range(0, rows, size)]
