"""From log-probabilities to a token."""

from __future__ import annotations

import torch
from torch import Tensor

from grpo.logprobs import tempered_log_softmax
from grpo.types import SamplingParams


def sample_tokens(
    logits: Tensor, params: SamplingParams, uniforms: Tensor | None, undefined: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Draw one token per row by inverting the cumulative distribution.

    One uniform number decides a token, so a sequence's draws do not depend on which other
    sequences share its batch.

    Args:
        logits: [B, V].
        params: temperature, top_k and top_p are used; temperature 0 takes the most likely token.
        uniforms: [B] numbers in [0, 1); not used at temperature 0.
        undefined: [V] bool, ids that cannot be sampled.

    Returns:
        tokens [B] and their logprobs [B], float32, at the sampling temperature over the whole
        vocabulary: top_k and top_p change what is drawn, not the number (the trainer's logprobs
        know nothing of them). Greedy logprobs are at temperature 1.
    """
    log_probs = tempered_log_softmax(logits, params.temperature or 1.0, undefined)
    if params.temperature == 0:
        tokens = log_probs.argmax(-1)
    else:
        tokens = _invert_cdf(_truncate(log_probs, params).exp(), uniforms)
    return tokens, log_probs.gather(-1, tokens[:, None])[:, 0]


def _truncate(log_probs: Tensor, params: SamplingParams) -> Tensor:
    """Rule out what top_k and top_p leave out; ties at the edge of top_k stay in."""
    if params.top_k is not None and params.top_k < log_probs.shape[-1]:
        edge = log_probs.topk(params.top_k).values[:, -1:]
        log_probs = log_probs.masked_fill(log_probs < edge, -torch.inf)
    if params.top_p is not None and params.top_p < 1:
        ranked, order = log_probs.softmax(-1).sort(dim=-1, descending=True)
        beyond = ranked.cumsum(-1) - ranked >= params.top_p  # the token that reaches p stays in
        log_probs = log_probs.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), -torch.inf)
    return log_probs


def _invert_cdf(weights: Tensor, uniforms: Tensor) -> Tensor:
    """The first index whose cumulative weight exceeds u times the total; weights need no scaling."""
    # 50k float32 terms lose the tail of the distribution; MPS knows no float64
    cumulative = weights.cumsum(-1, dtype=torch.float32 if weights.device.type == "mps" else torch.float64)
    target = uniforms.to(cumulative.dtype)[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, target, right=True)[:, 0].clamp(max=weights.shape[-1] - 1)
    # u * total can round up to the total, which lands behind the last token of weight above 0
    impossible = weights.gather(-1, tokens[:, None])[:, 0] == 0
    return torch.where(impossible, weights.argmax(-1), tokens)
