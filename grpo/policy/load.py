"""From a builder and a folder of weights to a model that can be trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torchtune.modules import TransformerDecoder
from torchtune.modules.peft import get_adapter_params, set_trainable_params

from grpo.config import ConfigError, instantiate
from grpo.models.weights import load_weights

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def check_model(builder: Mapping[str, Any], *, lora: bool) -> int:
    """Find a model that the recipe cannot train, from its modules alone: no weights are made.

    Args:
        builder: the component that makes the decoder.
        lora: whether the recipe trains adapters.

    Returns:
        how many ids the model has an embedding for.

    Raises:
        ConfigError: no torchtune decoder, adapters where there should be none or the reverse,
            adapters that a PEFT folder cannot hold, or dropout.
    """
    with torch.device("meta"):
        model = instantiate(builder)
    if not isinstance(model, TransformerDecoder):
        raise ConfigError(
            f"model: {builder['_component_']} makes a {type(model).__name__}, expected a torchtune "
            "TransformerDecoder"
        )
    adapters = get_adapter_params(model)
    if bool(adapters) != lora:
        has, other = ("no", "full") if lora else ("LoRA", "lora")
        raise ConfigError(
            f"model: {builder['_component_']} has {has} adapters; grpo_{other}_finetune_* trains such a model"
        )
    for name in adapters:
        if not name.startswith("layers.") or ".lora_" not in name:
            raise ConfigError(f"model: {name} has no name in PEFT's format; expected LoRA in the layers only")
    for name, module in model.named_modules():
        rate = module.p if isinstance(module, nn.Dropout) else getattr(module, "attn_dropout", 0.0)
        if rate > 0:
            raise ConfigError(
                f"model: {name} has dropout {rate}, expected 0: the ratio of GRPO compares two passes over "
                "the same tokens, and dropout would make them differ"
            )
    return model.tok_embeddings.num_embeddings


def load_model(
    builder: Mapping[str, Any], checkpoint_dir: str | Path, *, device: torch.device, dtype: str
) -> nn.Module:
    """Build a decoder, load its weights, and say what is trained.

    A model with adapters trains only these; any other is trained whole. What is trained is kept
    in float32, whatever ``dtype`` says: an update of 1e-6 vanishes in a bf16 weight. With
    ``bf16``, frozen matrices are stored in bf16 and matrix products run in it (autocast).

    Args:
        builder: the component that makes the decoder, LoRA or not.
        checkpoint_dir: Hugging Face folder, or ``tiny``.
        device: where the model is made; it never lies on the CPU as well.
        dtype: ``fp32`` or ``bf16``.

    Raises:
        ConfigError: the weights do not fit the builder.
    """
    default = torch.get_default_dtype()
    torch.set_default_dtype(DTYPES[dtype])
    try:
        with device:
            model = instantiate(builder)
    finally:
        torch.set_default_dtype(default)
    if adapters := get_adapter_params(model):
        set_trainable_params(model, adapters)
    for parameter in model.parameters():
        if parameter.requires_grad or parameter.ndim == 1:
            parameter.data = parameter.data.float()
    load_weights(model, checkpoint_dir)
    return model.eval()
