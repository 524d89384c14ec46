"""Weights from and to Hugging Face folders (config.json and safetensors)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from grpo.config.errors import ConfigError, nearest
from grpo.models.hf_layout import ROTATES_PAIRS, hf_to_tune, is_adapter_name, to_hf_state_dict
from grpo.models.locations import resolve_checkpoint_dir

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


def read_hf_config(checkpoint_dir: str | Path) -> dict[str, Any]:
    """The folder's config.json.

    Raises:
        ConfigError: no folder, no config.json, no JSON object in it, or an unsupported model_type.
    """
    folder = resolve_checkpoint_dir(checkpoint_dir)
    if not folder.is_dir():
        raise ConfigError(f"checkpoint_dir: no folder {folder}")
    path = folder / "config.json"
    if not path.is_file():
        raise ConfigError(f"checkpoint_dir: no config.json in {folder}; expected a Hugging Face model folder")
    config = _read_json(path)
    kind = config.get("model_type")
    if kind not in ROTATES_PAIRS:
        hint = nearest(str(kind), ROTATES_PAIRS)
        raise ConfigError(f"checkpoint_dir: {path} has the unsupported model_type {kind!r}{hint}")
    for key in ("num_attention_heads", "hidden_size"):
        if not isinstance(config.get(key), int):
            raise ConfigError(f"checkpoint_dir: {path} lacks the number {key}")
    return config


def check_checkpoint_dir(checkpoint_dir: str | Path) -> None:
    """Check, without reading weights, that a folder holds a model that can be loaded.

    Raises:
        ConfigError: what is missing, in one line.
    """
    read_hf_config(checkpoint_dir)
    for path in _weight_files(resolve_checkpoint_dir(checkpoint_dir)):
        if path.stat().st_size == 0:
            raise ConfigError(f"checkpoint_dir: {path} is empty")


def load_hf_state_dict(checkpoint_dir: str | Path) -> dict[str, Tensor]:
    """All weights of a folder in torchtune's names and layout, in their stored dtype, on the CPU.

    Raises:
        ConfigError: as :func:`check_checkpoint_dir`, or a weight that torchtune has no name for.
    """
    config = read_hf_config(checkpoint_dir)
    folder = resolve_checkpoint_dir(checkpoint_dir)
    weights: dict[str, Tensor] = {}
    for path in _weight_files(folder):
        weights.update(load_file(path))
    try:
        return hf_to_tune(weights, config)
    except Exception as error:  # torchtune raises a bare Exception for a name that it cannot map
        raise ConfigError(f"checkpoint_dir: cannot convert the weights in {folder}: {error}") from error


def save_hf_weights(
    folder: str | Path,
    tune_sd: Mapping[str, Tensor],
    hf_config: Mapping[str, Any],
    dtype: torch.dtype | None = None,
) -> Path:
    """Write ``model.safetensors`` in Hugging Face's names and layout; returns its path.

    Args:
        folder: where to write; must exist.
        tune_sd: a model's state dict without adapters.
        hf_config: the config.json that the weights belong to.
        dtype: stored as this (None: as they are).
    """
    weights = to_hf_state_dict(tune_sd, hf_config)
    path = Path(folder) / SINGLE_FILE
    stored = {name: tensor.to("cpu", dtype).contiguous() for name, tensor in weights.items()}
    save_file(stored, path, metadata={"format": "pt"})
    path.chmod(0o644)  # safetensors makes it readable to the owner alone
    return path


def load_weights(model: nn.Module, checkpoint_dir: str | Path) -> None:
    """Load a folder's weights into a torchtune model, every base weight exactly once.

    Adapter parameters of a LoRA model keep what they have. Weights are cast to the model's dtype.

    Raises:
        ConfigError: the model was built for another architecture; names the first difference.
    """
    folder = resolve_checkpoint_dir(checkpoint_dir)
    _check_architecture(model, read_hf_config(folder), folder)
    loaded = load_hf_state_dict(folder)
    expected = {name: t for name, t in model.state_dict().items() if not is_adapter_name(name)}
    misfit = f"checkpoint_dir: {folder} does not fit the model"
    for name, tensor in expected.items():
        if name not in loaded:
            raise ConfigError(f"{misfit}: {name} {list(tensor.shape)} is not in the checkpoint")
        stored = loaded[name].shape
        if stored != tensor.shape:
            raise ConfigError(
                f"{misfit}: {name} is {list(stored)} in the checkpoint, {list(tensor.shape)} in the model"
            )
    for name, tensor in loaded.items():
        if name not in expected:
            raise ConfigError(f"{misfit}: {name} {list(tensor.shape)} is not in the model")
    model.load_state_dict(loaded, strict=False)


def _check_architecture(model: nn.Module, config: Mapping[str, Any], folder: Path) -> None:
    """What equal shapes do not show: head counts, the rotary base and epsilon change the outputs silently."""
    layer = model.layers[0]
    rope = config.get("rope_parameters") or {}
    heads = config["num_attention_heads"]
    built_and_stored = {
        "num_attention_heads": (layer.attn.num_heads, heads),
        "num_key_value_heads": (layer.attn.num_kv_heads, config.get("num_key_value_heads") or heads),
        "rope_theta": (
            getattr(layer.attn.pos_embeddings, "base", None),
            config.get("rope_theta", rope.get("rope_theta")),
        ),
        "rms_norm_eps": (getattr(layer.sa_norm, "eps", None), config.get("rms_norm_eps")),
    }
    for key, (built, stored) in built_and_stored.items():
        if None not in (built, stored) and built != stored:
            raise ConfigError(
                f"checkpoint_dir: {folder} does not fit the model: {key} is {stored} in config.json, "
                f"{built} in the model"
            )


def _weight_files(folder: Path) -> list[Path]:
    index = folder / INDEX_FILE
    if not index.is_file():
        single = folder / SINGLE_FILE
        if single.is_file():
            return [single]
        raise ConfigError(f"checkpoint_dir: no weights in {folder}; expected {SINGLE_FILE} or {INDEX_FILE}")
    weight_map = _read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ConfigError(f"checkpoint_dir: {index} has no weight_map")
    shards = sorted(set(weight_map.values()))
    for shard in shards:
        if not (folder / shard).is_file():
            raise ConfigError(f"checkpoint_dir: {INDEX_FILE} in {folder} names the missing file {shard}")
    return [folder / shard for shard in shards]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"checkpoint_dir: {path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"checkpoint_dir: {path} must hold a JSON object")
    return content
