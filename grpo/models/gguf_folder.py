"""A Llama in a GGUF file as a Hugging Face folder: dequantised weights, tokenizer, chat template.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Needs the package ``gguf``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from grpo.config.errors import ConfigError
from grpo.models.hf_layout import pairs_to_halves

_TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL = 3  # tokenizer.ggml.token_type of a special token


def require_gguf() -> None:
    """Raise a ConfigError with the command that installs the package ``gguf``, where it is missing."""
    try:
        import gguf  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "download: reading a GGUF file needs the package gguf; run: python -m pip install gguf"
        ) from error


def gguf_to_hf_folder(gguf_file: str | Path, folder: str | Path) -> None:
    """Write config.json, model.safetensors (bfloat16), the tokenizer's files and generation_config.json.

    Args:
        gguf_file: a model of architecture ``llama`` with a byte-level BPE tokenizer.
        folder: where to write; must exist.

    Raises:
        ConfigError: the package ``gguf`` is missing, or the file holds another kind of model.
    """
    require_gguf()
    from gguf import GGUFReader

    reader = GGUFReader(gguf_file)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    for key, expected in (("general.architecture", "llama"), ("tokenizer.ggml.model", "gpt2")):
        if fields.get(key) != expected:
            raise ConfigError(f"download: {gguf_file}: {key} is {fields.get(key)!r}, expected {expected!r}")
    weights = _weights(reader, fields)
    out = Path(folder)
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)  # safetensors makes it readable to the owner alone
    _tokenizer(fields).save(str(out / "tokenizer.json"))
    ids = _special_ids(fields)
    _write_json(out / "config.json", _hf_config(fields, weights) | ids)
    _write_json(out / "generation_config.json", ids)
    _write_json(out / "tokenizer_config.json", _tokenizer_config(fields))


def _weights(reader: Any, fields: dict[str, Any]) -> dict[str, Tensor]:
    from gguf import dequantize

    heads = {
        "attn_q": fields["llama.attention.head_count"],
        "attn_k": fields["llama.attention.head_count_kv"],
    }
    weights: dict[str, Tensor] = {}
    for stored in reader.tensors:
        values = dequantize(stored.data, stored.tensor_type).astype(np.float32)
        weight = torch.from_numpy(np.ascontiguousarray(values))
        parts = stored.name.split(".")
        if parts[0] == "blk":
            _, layer, kind, _ = parts
            # llama.cpp rotates neighbouring pairs, Hugging Face the halves of a head.
            if kind in heads:
                weight = pairs_to_halves(weight, heads[kind])
            name = f"model.layers.{layer}.{_LAYER_TENSORS[kind]}.weight"
        else:
            name = f"{_TENSORS[parts[0]]}.weight"
        weights[name] = weight.to(torch.bfloat16)
    return weights


def _hf_config(fields: dict[str, Any], weights: dict[str, Tensor]) -> dict[str, Any]:
    hidden, heads = fields["llama.embedding_length"], fields["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": hidden // heads,
        "vocab_size": weights["model.embed_tokens.weight"].shape[0],
        "max_position_embeddings": fields["llama.context_length"],
        # Stored in float32: 1e-5 reads as 9.99999974e-06.
        "rms_norm_eps": float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": float(fields["llama.rope.freq_base"]),
        "tie_word_embeddings": "lm_head.weight" not in weights,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "bfloat16",
    }


def _special_ids(fields: dict[str, Any]) -> dict[str, int]:
    keys = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    found = {name: fields.get(f"tokenizer.ggml.{key}_token_id") for name, key in keys.items()}
    return {name: token_id for name, token_id in found.items() if token_id is not None}


def _tokenizer(fields: dict[str, Any]) -> Tokenizer:
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    # SmolLM's rule, which GGUF names but does not spell out: every digit is a token.
    digits = [pre_tokenizers.Digits(individual_digits=True)]
    steps = digits if fields.get("tokenizer.ggml.pre") == "smollm" else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return tokenizer


def _tokenizer_config(fields: dict[str, Any]) -> dict[str, Any]:
    tokens = fields["tokenizer.ggml.tokens"]
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": fields["llama.context_length"],
    }
    for name, key in {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}.items():
        token_id = fields.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is not None:
            config[f"{name}_token"] = tokens[token_id]
    if "tokenizer.chat_template" in fields:
        config["chat_template"] = fields["tokenizer.chat_template"]
    return config


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
