"""From a builder and a folder of weights to a model that can be trained."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchtune.modules import TransformerDecoder
from torchtune.modules.peft import get_adapter_params, set_trainable_params

from grpo.config import ConfigError, instantiate
from grpo.models.shares import copy_share
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
    builder: Mapping[str, Any], checkpoint_dir: str | Path, *, device: torch.device, dtype: str, seed: int = 0
) -> nn.Module:
    """:func:`build_model`, then :func:`fill_model`: a model that is ready to train."""
    return fill_model(build_model(builder, dtype=dtype), checkpoint_dir, device=device, seed=seed)


def build_model(builder: Mapping[str, Any], *, dtype: str) -> nn.Module:
    """A decoder without memory (on the meta device), and what of it is trained.

    A model with adapters trains only these; any other is trained whole. What is trained is kept
    in float32, whatever ``dtype`` says: an update of 1e-6 vanishes in a bf16 weight. With
    ``bf16``, frozen matrices are stored in bf16 and matrix products run in it.

    Args:
        builder: the component that makes the decoder, LoRA or not.
        dtype: ``fp32`` or ``bf16``.
    """
    default = torch.get_default_dtype()
    torch.set_default_dtype(DTYPES[dtype])
    try:
        with torch.device("meta"):
            model = instantiate(builder)
    finally:
        torch.set_default_dtype(default)
    if adapters := get_adapter_params(model):
        set_trainable_params(model, adapters)
    for parameter in model.parameters():
        if parameter.requires_grad or parameter.ndim == 1:
            parameter.data = parameter.data.float()
    return model.eval()


def fill_model(
    model: nn.Module, checkpoint_dir: str | Path, *, device: torch.device | str, seed: int = 0
) -> nn.Module:
    """Give a model of :func:`build_model` memory and weights; a sharded one, only this rank's share.

    New adapters depend on ``seed`` and their names alone, neither on the device nor on how the
    model is sharded.

    Args:
        model: on the meta device.
        checkpoint_dir: Hugging Face folder, or ``tiny``.
        device: where the weights go; they never lie on the CPU as well.
        seed: of new adapters.

    Raises:
        ConfigError: the weights do not fit the model.
    """
    model.to_empty(device=device)
    for name, module in model.named_modules():
        if hasattr(module, "rope_init"):
            with torch.device(device):
                module.rope_init()
        elif any(True for _ in module.buffers(recurse=False)):
            raise ConfigError(f"model: {name} has buffers that nothing but its constructor can fill")
    for name, parameter in get_adapter_params(model).items():
        copy_share(parameter, _new_adapter(name, parameter.shape, seed))
    load_weights(model, checkpoint_dir)
    return model


def _new_adapter(name: str, shape: torch.Size, seed: int) -> Tensor:
    """LoRA's start (arXiv 2106.09685, section 4.1): B is 0; A is uniform here, as in their code."""
    whole = torch.zeros(shape)
    if ".lora_a." in name:
        digest = hashlib.sha256(f"adapter {name}, seed {seed}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:4]))
        nn.init.kaiming_uniform_(whole, a=math.sqrt(5), generator=generator)
    return whole
