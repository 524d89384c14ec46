"""LoRA adapters as PEFT folders (adapter_model.safetensors and adapter_config.json), both ways.

torchtune's own exporter is not used: it reorders the query and key rows for every model, which is
wrong for Qwen2, whose rotary embedding has the same order on both sides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from grpo.config.errors import ConfigError
from grpo.models.hf_layout import HeadLayout, halves_to_pairs, pairs_to_halves

ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"

_PREFIX = "base_model.model."
_TO_HF_MODULE = {
    "attn.q_proj": "self_attn.q_proj",
    "attn.k_proj": "self_attn.k_proj",
    "attn.v_proj": "self_attn.v_proj",
    "attn.output_proj": "self_attn.o_proj",
    "mlp.w1": "mlp.gate_proj",
    "mlp.w2": "mlp.down_proj",
    "mlp.w3": "mlp.up_proj",
}
_FROM_HF_MODULE = {hf: tune for tune, hf in _TO_HF_MODULE.items()}
_TUNE_NAME = re.compile(r"layers\.(\d+)\.(.+)\.lora_([ab])\.weight")
_PEFT_NAME = re.compile(re.escape(_PREFIX) + r"model\.layers\.(\d+)\.(.+)\.lora_([AB])\.weight")


def save_peft_adapter(
    folder: str | Path,
    adapter_state_dict: Mapping[str, Tensor],
    hf_config: Mapping[str, Any],
    *,
    rank: int,
    alpha: float,
    base_model_path: str | Path,
    dropout: float = 0.0,
    dtype: torch.dtype | None = None,
) -> None:
    """Write an adapter that ``peft.PeftModel.from_pretrained`` and vLLM load.

    Args:
        folder: where to write; must exist.
        adapter_state_dict: ``lora_a`` and ``lora_b`` weights in torchtune's names.
        hf_config: the base model's config.json.
        rank, alpha, dropout: as the model was built; both libraries scale by ``alpha / rank``.
        base_model_path: the base model's folder, recorded for PEFT.
        dtype: stored as this (None: as they are).

    Raises:
        ValueError: nothing to write, a name that is no LoRA weight of a layer, or another rank.
    """
    layout = HeadLayout.from_hf_config(hf_config)
    if not adapter_state_dict:
        raise ValueError("save_peft_adapter: the adapter holds no weights")
    weights: dict[str, Tensor] = {}
    targets: set[str] = set()
    for name, tensor in adapter_state_dict.items():
        match = _TUNE_NAME.fullmatch(name)
        if match is None or match[2] not in _TO_HF_MODULE:
            raise ValueError(
                f"save_peft_adapter: {name} is no LoRA weight that PEFT's format is written for here"
            )
        layer, module, side = match.groups()
        found = tensor.shape[0] if side == "a" else tensor.shape[1]
        if found != rank:
            raise ValueError(f"save_peft_adapter: {name} has rank {found}, expected {rank}")
        hf_module = _TO_HF_MODULE[module]
        if side == "b" and (heads := _rotated_heads(module, layout)):
            tensor = pairs_to_halves(tensor, heads)
        weights[f"{_PREFIX}model.layers.{layer}.{hf_module}.lora_{side.upper()}.weight"] = (
            tensor.detach().to("cpu", dtype).contiguous()
        )
        targets.add(hf_module.rsplit(".", 1)[1])
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base_model_path),
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": dropout,
        "target_modules": sorted(targets),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    path = Path(folder) / ADAPTER_WEIGHTS
    save_file(weights, path, metadata={"format": "pt"})
    path.chmod(0o644)  # safetensors makes it readable to the owner alone
    (Path(folder) / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def load_peft_adapter(folder: str | Path, hf_config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The exact inverse of :func:`save_peft_adapter`: LoRA weights in torchtune's names and layout.

    Raises:
        ConfigError: no adapter in the folder, or one that adapts something else.
    """
    path = Path(folder) / ADAPTER_WEIGHTS
    if not path.is_file():
        raise ConfigError(f"adapter: no {ADAPTER_WEIGHTS} in {folder}")
    layout = HeadLayout.from_hf_config(hf_config)
    adapter: dict[str, Tensor] = {}
    for name, tensor in load_file(path).items():
        match = _PEFT_NAME.fullmatch(name)
        if match is None or match[2] not in _FROM_HF_MODULE:
            raise ConfigError(
                f"adapter: {path} holds {name}, which is no LoRA weight of a layer's projection"
            )
        layer, hf_module, side = match.groups()
        module = _FROM_HF_MODULE[hf_module]
        if side == "B" and (heads := _rotated_heads(module, layout)):
            tensor = halves_to_pairs(tensor, heads)
        adapter[f"layers.{layer}.{module}.lora_{side.lower()}.weight"] = tensor
    return adapter


def _rotated_heads(module: str, layout: HeadLayout) -> int:
    """Heads whose rows stand in another order on the two sides; 0 where the order is the same."""
    if not layout.rotates_pairs:
        return 0
    return {"attn.q_proj": layout.num_heads, "attn.k_proj": layout.num_kv_heads}.get(module, 0)
