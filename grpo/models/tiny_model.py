"""Builders of the embedded model, whose weights lie in the package folder ``tiny``.

A Llama of 0.7 million parameters that reads characters. ``scripts/make_tiny_model.py`` made it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchtune.modules import TransformerDecoder

from grpo.models.smollm2 import check_builder, lora_smollm2, smollm2

# 112 rows of logits for fewer tokens: the tail is undefined, as in the padded vocabularies of big models.
TINY_SIZES: dict[str, Any] = dict(
    vocab_size=112,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    embed_dim=128,
    intermediate_dim=320,
    rope_base=10_000,
)


def tiny(max_seq_len: int = 128, attn_dropout: float = 0.0) -> TransformerDecoder:
    """The embedded model's architecture, with random weights until a checkpoint is loaded."""
    return smollm2(max_seq_len=max_seq_len, attn_dropout=attn_dropout, **TINY_SIZES)


def lora_tiny(
    lora_attn_modules: Sequence[str],
    apply_lora_to_mlp: bool = False,
    lora_rank: int = 8,
    lora_alpha: float = 16,
    lora_dropout: float = 0.0,
    max_seq_len: int = 128,
    attn_dropout: float = 0.0,
) -> TransformerDecoder:
    """:func:`tiny` with LoRA; arguments as in :func:`grpo.models.smollm2.lora_smollm2`."""
    return lora_smollm2(
        lora_attn_modules,
        apply_lora_to_mlp,
        max_seq_len=max_seq_len,
        attn_dropout=attn_dropout,
        lora_rank=lora_rank,
        lora_alpha=lora_alpha,
        lora_dropout=lora_dropout,
        **TINY_SIZES,
    )


tiny.check = check_builder
lora_tiny.check = check_builder
