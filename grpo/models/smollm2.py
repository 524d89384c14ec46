"""SmolLM2 and models of its shape from torchtune's parts.

SmolLM2 is a Llama with tied embeddings and plain rotary positions. torchtune's own ``llama3_2``
builder always scales the rotary frequencies, so it cannot build it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torchtune.modules import (
    FeedForward,
    MultiHeadAttention,
    RMSNorm,
    RotaryPositionalEmbeddings,
    TiedLinear,
    TransformerDecoder,
    TransformerSelfAttentionLayer,
)
from torchtune.modules.peft import LoRALinear

from grpo.config.errors import ConfigError, nearest

LORA_ATTN_MODULES = ("q_proj", "k_proj", "v_proj", "output_proj")

# Sizes as in the config.json of HuggingFaceTB/SmolLM2-{135M,360M,1.7B}-Instruct.
_VOCAB_SIZE = 49_152
_SIZES: dict[str, dict[str, Any]] = {
    "135m": dict(num_layers=30, num_heads=9, num_kv_heads=3, embed_dim=576, intermediate_dim=1536),
    "360m": dict(num_layers=32, num_heads=15, num_kv_heads=5, embed_dim=960, intermediate_dim=2560),
    "1_7b": dict(num_layers=24, num_heads=32, num_kv_heads=32, embed_dim=2048, intermediate_dim=8192),
}
_ROPE_BASE = {"135m": 100_000, "360m": 100_000, "1_7b": 130_000}


def smollm2(
    *,
    vocab_size: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    embed_dim: int,
    intermediate_dim: int,
    max_seq_len: int,
    attn_dropout: float = 0.0,
    norm_eps: float = 1e-5,
    rope_base: int = 10_000,
) -> TransformerDecoder:
    """A decoder of SmolLM2's kind: grouped-query attention, SwiGLU, RMSNorm, tied embeddings.

    Args:
        vocab_size: rows of the embedding, which is also the output projection.
        num_layers: transformer layers.
        num_heads: query heads; must divide ``embed_dim``.
        num_kv_heads: key and value heads; must divide ``num_heads``.
        embed_dim: width of the residual stream.
        intermediate_dim: width inside the feed-forward block.
        max_seq_len: positions that the rotary table and a KV cache cover.
        attn_dropout: dropout on attention weights while training.
        norm_eps: epsilon of every RMSNorm.
        rope_base: base of the rotary frequencies (``rope_theta``).
    """
    return _decoder(
        vocab_size=vocab_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        embed_dim=embed_dim,
        intermediate_dim=intermediate_dim,
        max_seq_len=max_seq_len,
        attn_dropout=attn_dropout,
        norm_eps=norm_eps,
        rope_base=rope_base,
        lora_modules=frozenset(),
        lora={},
    )


def lora_smollm2(
    lora_attn_modules: Sequence[str],
    apply_lora_to_mlp: bool = False,
    *,
    vocab_size: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    embed_dim: int,
    intermediate_dim: int,
    max_seq_len: int,
    attn_dropout: float = 0.0,
    norm_eps: float = 1e-5,
    rope_base: int = 10_000,
    lora_rank: int = 8,
    lora_alpha: float = 16,
    lora_dropout: float = 0.0,
) -> TransformerDecoder:
    """:func:`smollm2` with LoRA on the named attention projections and, if asked, the MLP.

    Args:
        lora_attn_modules: any of ``q_proj``, ``k_proj``, ``v_proj``, ``output_proj``.
        apply_lora_to_mlp: also adapt the three projections of each feed-forward block.
        lora_rank: rank r of each update B A.
        lora_alpha: the update is scaled by ``lora_alpha / lora_rank``.
        lora_dropout: dropout on the input of A while training.

    The other arguments are :func:`smollm2`'s.

    Raises:
        ConfigError: an unknown module, nothing to adapt, or a rank, alpha or dropout out of range.
    """
    _check_lora(lora_attn_modules, apply_lora_to_mlp, lora_rank, lora_alpha, lora_dropout)
    mlp = ("w1", "w2", "w3") if apply_lora_to_mlp else ()
    return _decoder(
        vocab_size=vocab_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        embed_dim=embed_dim,
        intermediate_dim=intermediate_dim,
        max_seq_len=max_seq_len,
        attn_dropout=attn_dropout,
        norm_eps=norm_eps,
        rope_base=rope_base,
        lora_modules=frozenset(lora_attn_modules) | frozenset(mlp),
        lora=dict(rank=lora_rank, alpha=lora_alpha, dropout=lora_dropout),
    )


def smollm2_135m(max_seq_len: int = 2048, attn_dropout: float = 0.0) -> TransformerDecoder:
    """SmolLM2-135M (the model itself was trained for up to 8192 positions)."""
    return _sized("135m", max_seq_len, attn_dropout)


def smollm2_360m(max_seq_len: int = 2048, attn_dropout: float = 0.0) -> TransformerDecoder:
    """SmolLM2-360M (the model itself was trained for up to 8192 positions)."""
    return _sized("360m", max_seq_len, attn_dropout)


def smollm2_1_7b(max_seq_len: int = 2048, attn_dropout: float = 0.0) -> TransformerDecoder:
    """SmolLM2-1.7B (the model itself was trained for up to 8192 positions)."""
    return _sized("1_7b", max_seq_len, attn_dropout)


def lora_smollm2_135m(
    lora_attn_modules: Sequence[str],
    apply_lora_to_mlp: bool = False,
    lora_rank: int = 8,
    lora_alpha: float = 16,
    lora_dropout: float = 0.0,
    max_seq_len: int = 2048,
    attn_dropout: float = 0.0,
) -> TransformerDecoder:
    """SmolLM2-135M with LoRA; arguments as in :func:`lora_smollm2`."""
    lora = dict(lora_rank=lora_rank, lora_alpha=lora_alpha, lora_dropout=lora_dropout)
    return _lora_sized("135m", lora_attn_modules, apply_lora_to_mlp, max_seq_len, attn_dropout, lora)


def lora_smollm2_360m(
    lora_attn_modules: Sequence[str],
    apply_lora_to_mlp: bool = False,
    lora_rank: int = 8,
    lora_alpha: float = 16,
    lora_dropout: float = 0.0,
    max_seq_len: int = 2048,
    attn_dropout: float = 0.0,
) -> TransformerDecoder:
    """SmolLM2-360M with LoRA; arguments as in :func:`lora_smollm2`."""
    lora = dict(lora_rank=lora_rank, lora_alpha=lora_alpha, lora_dropout=lora_dropout)
    return _lora_sized("360m", lora_attn_modules, apply_lora_to_mlp, max_seq_len, attn_dropout, lora)


def lora_smollm2_1_7b(
    lora_attn_modules: Sequence[str],
    apply_lora_to_mlp: bool = False,
    lora_rank: int = 8,
    lora_alpha: float = 16,
    lora_dropout: float = 0.0,
    max_seq_len: int = 2048,
    attn_dropout: float = 0.0,
) -> TransformerDecoder:
    """SmolLM2-1.7B with LoRA; arguments as in :func:`lora_smollm2`."""
    lora = dict(lora_rank=lora_rank, lora_alpha=lora_alpha, lora_dropout=lora_dropout)
    return _lora_sized("1_7b", lora_attn_modules, apply_lora_to_mlp, max_seq_len, attn_dropout, lora)


def check_builder(
    *,
    max_seq_len: int | None = None,
    attn_dropout: float = 0.0,
    lora_attn_modules: Sequence[str] | None = None,
    apply_lora_to_mlp: bool = False,
    lora_rank: int = 8,
    lora_alpha: float = 16,
    lora_dropout: float = 0.0,
) -> None:
    """Check a builder's arguments without building it.

    Raises:
        ConfigError: the first argument that no model can be built with.
    """
    if max_seq_len is not None and max_seq_len < 1:
        raise ConfigError(f"max_seq_len must be at least 1, got {max_seq_len}")
    if not 0 <= attn_dropout < 1:
        raise ConfigError(f"attn_dropout must lie in [0, 1), got {attn_dropout}")
    if lora_attn_modules is not None:
        _check_lora(lora_attn_modules, apply_lora_to_mlp, lora_rank, lora_alpha, lora_dropout)


for _builder in (smollm2_135m, smollm2_360m, smollm2_1_7b):
    _builder.check = check_builder
for _builder in (lora_smollm2_135m, lora_smollm2_360m, lora_smollm2_1_7b):
    _builder.check = check_builder


def _sized(size: str, max_seq_len: int, attn_dropout: float) -> TransformerDecoder:
    return smollm2(
        vocab_size=_VOCAB_SIZE,
        max_seq_len=max_seq_len,
        attn_dropout=attn_dropout,
        rope_base=_ROPE_BASE[size],
        **_SIZES[size],
    )


def _lora_sized(
    size: str,
    lora_attn_modules: Sequence[str],
    apply_lora_to_mlp: bool,
    max_seq_len: int,
    attn_dropout: float,
    lora: dict[str, Any],
) -> TransformerDecoder:
    return lora_smollm2(
        lora_attn_modules,
        apply_lora_to_mlp,
        vocab_size=_VOCAB_SIZE,
        max_seq_len=max_seq_len,
        attn_dropout=attn_dropout,
        rope_base=_ROPE_BASE[size],
        **_SIZES[size],
        **lora,
    )


def _check_lora(modules: Sequence[str], mlp: bool, rank: int, alpha: float, dropout: float) -> None:
    if isinstance(modules, str):
        raise ConfigError(f"lora_attn_modules must be a list of module names, got the text {modules!r}")
    for name in modules:
        if name not in LORA_ATTN_MODULES:
            hint = nearest(name, LORA_ATTN_MODULES)
            raise ConfigError(f"lora_attn_modules: unknown attention module {name!r}{hint}")
    if not modules and not mlp:
        raise ConfigError("lora_attn_modules is empty and apply_lora_to_mlp is false: nothing to train")
    if rank < 1:
        raise ConfigError(f"lora_rank must be at least 1, got {rank}")
    if alpha <= 0:
        raise ConfigError(f"lora_alpha must be more than 0, got {alpha}")
    if not 0 <= dropout < 1:
        raise ConfigError(f"lora_dropout must lie in [0, 1), got {dropout}")


def _decoder(
    *,
    vocab_size: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    embed_dim: int,
    intermediate_dim: int,
    max_seq_len: int,
    attn_dropout: float,
    norm_eps: float,
    rope_base: int,
    lora_modules: frozenset[str],
    lora: dict[str, Any],
) -> TransformerDecoder:
    head_dim = embed_dim // num_heads
    kv_dim = num_kv_heads * head_dim

    def linear(name: str, in_dim: int, out_dim: int) -> nn.Module:
        if name in lora_modules:
            return LoRALinear(in_dim, out_dim, **lora)
        return nn.Linear(in_dim, out_dim, bias=False)

    # One rotary table serves all layers.
    rope = RotaryPositionalEmbeddings(dim=head_dim, max_seq_len=max_seq_len, base=rope_base)
    layers = nn.ModuleList()
    for _ in range(num_layers):
        attn = MultiHeadAttention(
            embed_dim=embed_dim,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            q_proj=linear("q_proj", embed_dim, embed_dim),
            k_proj=linear("k_proj", embed_dim, kv_dim),
            v_proj=linear("v_proj", embed_dim, kv_dim),
            output_proj=linear("output_proj", embed_dim, embed_dim),
            pos_embeddings=rope,
            max_seq_len=max_seq_len,
            attn_dropout=attn_dropout,
        )
        mlp = FeedForward(
            gate_proj=linear("w1", embed_dim, intermediate_dim),
            down_proj=linear("w2", intermediate_dim, embed_dim),
            up_proj=linear("w3", embed_dim, intermediate_dim),
        )
        norms = dict(sa_norm=RMSNorm(embed_dim, eps=norm_eps), mlp_norm=RMSNorm(embed_dim, eps=norm_eps))
        layers.append(TransformerSelfAttentionLayer(attn=attn, mlp=mlp, **norms))
    embeddings = nn.Embedding(vocab_size, embed_dim)
    return TransformerDecoder(
        tok_embeddings=embeddings,
        layers=layers,
        max_seq_len=max_seq_len,
        num_heads=num_heads,
        head_dim=head_dim,
        norm=RMSNorm(embed_dim, eps=norm_eps),
        output=TiedLinear(embeddings),
    )
