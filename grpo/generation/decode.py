"""One pass of a torchtune decoder over new tokens and a cache of old ones.

torchtune's own cache has one write position and one size for all rows, so rows can neither
share a prompt nor leave early. This walks the same modules (adapters included) with
:class:`~grpo.generation.cache.KVCache` instead.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from grpo.distributed import WHOLE, WeightAccess
from grpo.generation.cache import KVCache


def hidden_states(
    model: nn.Module,
    tokens: Tensor,
    positions: Tensor,
    cache: KVCache,
    weights: WeightAccess = WHOLE,
) -> Tensor:
    """Last hidden states, after the final norm, of S new tokens per row.

    Args:
        model: torchtune ``TransformerDecoder`` of self-attention layers.
        tokens: [B, S].
        positions: [B, S] position of each token in its own sequence (left padding not counted).
        cache: what came before; S > 1 only as the first pass (a prompt).
        weights: how the parameters of a sharded model are reached.

    Returns:
        [B, S, D]; the cache has grown by S columns.
    """
    mask = _prompt_mask(cache.visible, tokens.shape[1]) if tokens.shape[1] > 1 else _token_mask(cache)
    weights.start_pass()
    h = model.tok_embeddings(tokens)
    for i, layer in enumerate(model.layers):
        with weights.layer(layer):
            attended = _attention(layer.attn, layer.sa_norm(h), positions, cache, i, mask)
            h = h + layer.sa_scale(attended)
            h = h + layer.mlp_scale(layer.mlp(layer.mlp_norm(h)))
    cache.advance(tokens.shape[1])
    return model.norm(h)


def _prompt_mask(visible: Tensor | None, length: int) -> Tensor | None:
    """[B, 1, S, S]: causal and not padding; None when plain causal attention is right.

    Padding attends to itself: a row of the softmax without any entry would be NaN.
    """
    if visible is None:
        return None
    causal = torch.ones(length, length, dtype=torch.bool, device=visible.device).tril()
    diagonal = torch.eye(length, dtype=torch.bool, device=visible.device)
    return ((causal & visible[:, None, :]) | diagonal)[:, None]


def _token_mask(cache: KVCache) -> Tensor | None:
    """[B, 1, 1, length + 1]: everything but padding, the new token included."""
    if cache.visible is None:
        return None
    new = cache.visible.new_ones(len(cache.visible), 1)
    return torch.cat([cache.visible, new], dim=1)[:, None, None, :]


def _attention(
    attn: nn.Module, x: Tensor, positions: Tensor, cache: KVCache, layer: int, mask: Tensor | None
) -> Tensor:
    batch, length, _ = x.shape
    group = attn.num_heads // attn.num_kv_heads

    def heads(projected: Tensor, norm: nn.Module | None, rotate: bool) -> Tensor:
        y = projected.view(batch, length, -1, attn.head_dim)
        if rotate and attn.pos_embeddings is not None:
            y = attn.pos_embeddings(y, input_pos=positions)
        y = y.transpose(1, 2)
        return y if norm is None else norm(y)

    q = heads(attn.q_proj(x), attn.q_norm, rotate=True)
    keys, values = cache.append(
        layer,
        heads(attn.k_proj(x), attn.k_norm, rotate=True),
        heads(attn.v_proj(x), None, rotate=False),
    )
    if length == 1:
        # The query heads of one KV head become rows of one matrix: nothing is expanded over the cache.
        q = q.reshape(batch, attn.num_kv_heads, group, attn.head_dim)
        out = scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        out = out.reshape(batch, attn.num_heads, 1, attn.head_dim)
    else:
        keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
        out = scaled_dot_product_attention(q, keys, values, attn_mask=mask, is_causal=mask is None)
    return attn.output_proj(out.transpose(1, 2).reshape(batch, length, -1))
