"""Names and layouts of weights: Hugging Face's against torchtune's.

Beside the names, one thing differs. Hugging Face's Llama rotates the halves of a head
(x_i with x_{i + d/2}), torchtune's neighbouring pairs (x_2i with x_2i+1), so the rows of the query
and key projections stand in another order. torchtune's Qwen2 rotates halves, as Hugging Face does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torchtune.models import convert_weights
from torchtune.models.qwen2 import qwen2_hf_to_tune, qwen2_tune_to_hf

# config.json's model_type, and whether torchtune rotates neighbouring pairs for it.
ROTATES_PAIRS = {"llama": True, "mistral": True, "qwen2": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadLayout:
    """What a config.json says about attention heads; all that a conversion needs."""

    num_heads: int
    num_kv_heads: int
    embed_dim: int
    head_dim: int
    rotates_pairs: bool

    @classmethod
    def from_hf_config(cls, hf_config: Mapping[str, Any]) -> HeadLayout:
        """Read the fields, with transformers' defaults for the optional ones."""
        heads, dim = hf_config["num_attention_heads"], hf_config["hidden_size"]
        return cls(
            num_heads=heads,
            num_kv_heads=hf_config.get("num_key_value_heads") or heads,
            embed_dim=dim,
            head_dim=hf_config.get("head_dim") or dim // heads,
            rotates_pairs=ROTATES_PAIRS[hf_config["model_type"]],
        )

    def kwargs(self) -> dict[str, int]:
        """The arguments of torchtune's converters."""
        return dict(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            dim=self.embed_dim,
            head_dim=self.head_dim,
        )


def hf_to_tune(state_dict: Mapping[str, Tensor], hf_config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Hugging Face weights as torchtune names and lays them out; tied output weights are dropped."""
    layout = HeadLayout.from_hf_config(hf_config)
    weights = dict(state_dict)
    if hf_config.get("tie_word_embeddings", False):
        weights.pop("lm_head.weight", None)
    convert = convert_weights.hf_to_tune if layout.rotates_pairs else qwen2_hf_to_tune
    return convert(weights, **layout.kwargs())


def reorders_rows(hf_name: str, hf_config: Mapping[str, Any]) -> bool:
    """Whether a weight's rows stand in another order in the two layouts."""
    rotates = HeadLayout.from_hf_config(hf_config).rotates_pairs
    return rotates and hf_name.endswith(("q_proj.weight", "k_proj.weight"))


def to_hf_state_dict(tune_sd: Mapping[str, Tensor], hf_config: Mapping[str, Any]) -> dict[str, Tensor]:
    """torchtune weights in Hugging Face's names and layout; the exact inverse of loading.

    Args:
        tune_sd: a model's state dict without adapters (merge them first).
        hf_config: the config.json that the weights will lie beside.

    Raises:
        ValueError: a name that is no base weight.
    """
    adapters = [name for name in tune_sd if is_adapter_name(name)]
    if adapters:
        raise ValueError(f"to_hf_state_dict: merge or leave out the adapters first, found {adapters[0]}")
    layout = HeadLayout.from_hf_config(hf_config)
    weights = {name: tensor.detach().contiguous() for name, tensor in tune_sd.items()}
    if hf_config.get("tie_word_embeddings", False):
        weights.pop("output.weight", None)
    convert = convert_weights.tune_to_hf if layout.rotates_pairs else qwen2_tune_to_hf
    return convert(weights, **layout.kwargs())


def is_adapter_name(name: str) -> bool:
    """Whether a torchtune parameter belongs to an adapter and not to the base model."""
    return name.rsplit(".", 2)[-2] in ("lora_a", "lora_b") or name.endswith(".magnitude")


def pairs_to_halves(rows: Tensor, num_heads: int) -> Tensor:
    """Reorder [num_heads * d, ...] from torchtune's rotary order (pairs) to Hugging Face's (halves)."""
    d = rows.shape[0] // num_heads
    return rows.reshape(num_heads, d // 2, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def halves_to_pairs(rows: Tensor, num_heads: int) -> Tensor:
    """The inverse of :func:`pairs_to_halves`."""
    d = rows.shape[0] // num_heads
    return rows.reshape(num_heads, 2, d // 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)
