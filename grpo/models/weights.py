"""Weights from and to Hugging Face folders (config.json and safetensors)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from grpo.config.errors import ConfigError, nearest
from grpo.models.hf_layout import (
    ROTATES_PAIRS,
    hf_to_tune,
    is_adapter_name,
    reorders_rows,
    to_hf_state_dict,
)
from grpo.models.locations import resolve_checkpoint_dir
from grpo.models.shares import rows_of, share_of, whole_of

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_SHARD_BYTES = 2 * 2**30


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
    stored = stored_weights(checkpoint_dir)
    return {name: weight.rows(slice(0, weight.shape[0])) for name, weight in stored.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWeight:
    """One weight in a safetensors file, read when it is asked for.

    Attributes:
        path, stored_name: where it lies.
        shape: of the whole weight.
        convert: from the stored layout of the whole weight to torchtune's.
        in_order: whether its rows are stored in torchtune's order, so that some can be read alone.
    """

    path: Path
    stored_name: str
    shape: torch.Size
    convert: Callable[[Tensor], Tensor]
    in_order: bool

    def rows(self, rows: slice) -> Tensor:
        """Some rows, in torchtune's layout and the stored dtype.

        The file is opened for each weight: pages of a mapped file count as the process's memory
        for as long as the file is open.
        """
        with safe_open(self.path, "pt") as file:
            if self.in_order:
                return file.get_slice(self.stored_name)[rows]
            return self.convert(file.get_tensor(self.stored_name))[rows]


def stored_weights(checkpoint_dir: str | Path) -> dict[str, StoredWeight]:
    """What lies in a folder, by torchtune's names; nothing but headers is read.

    Raises:
        ConfigError: as :func:`check_checkpoint_dir`, or a weight that torchtune has no name for.
    """
    config = read_hf_config(checkpoint_dir)
    folder = resolve_checkpoint_dir(checkpoint_dir)
    found: dict[str, StoredWeight] = {}
    for path in _weight_files(folder):
        with safe_open(path, "pt") as file:
            shapes = {name: torch.Size(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        for stored_name, shape in shapes.items():
            try:
                converted = hf_to_tune({stored_name: torch.empty(shape, device="meta")}, config)
            except Exception as error:  # torchtune raises a bare Exception for a name that it cannot map
                raise ConfigError(
                    f"checkpoint_dir: cannot convert the weights in {folder}: {error}"
                ) from error
            for name in converted:
                found[name] = StoredWeight(
                    path=path,
                    stored_name=stored_name,
                    shape=shape,
                    convert=partial(_converted, stored_name, config),
                    in_order=not reorders_rows(stored_name, config),
                )
    return found


def _converted(stored_name: str, config: Mapping[str, Any], tensor: Tensor) -> Tensor:
    return next(iter(hf_to_tune({stored_name: tensor}, config).values()))


def save_hf_weights(
    folder: str | Path,
    tune_sd: Mapping[str, Tensor],
    hf_config: Mapping[str, Any],
    dtype: torch.dtype | None = None,
    *,
    writes: bool = True,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Write weights in Hugging Face's names and layout: one file, or several and their index.

    The weights may be sharded over ranks; then all ranks call this, one of them with ``writes``.
    Each weight is made whole in its turn, and no rank holds more than one file's weights.

    Args:
        folder: where to write; must exist.
        tune_sd: a model's state dict without adapters.
        hf_config: the config.json that the weights belong to.
        dtype: stored as this (None: as they are).
        writes: whether this rank keeps and writes the weights.
        max_shard_bytes: size of a file; a larger weight gets a file of its own.
    """
    files = _plan_files(tune_sd, dtype, max_shard_bytes)
    weight_map: dict[str, str] = {}
    for number, names in enumerate(files, start=1):
        weights: dict[str, Tensor] = {}
        for name in names:
            tensor = whole_of(tune_sd[name])
            if writes:
                weights[name] = tensor.to("cpu", dtype)
        if not writes:
            continue
        stored = {n: t.contiguous() for n, t in to_hf_state_dict(weights, hf_config).items()}
        file = SINGLE_FILE if len(files) == 1 else f"model-{number:05d}-of-{len(files):05d}.safetensors"
        save_file(stored, Path(folder) / file, metadata={"format": "pt"})
        (Path(folder) / file).chmod(0o644)  # safetensors makes it readable to the owner alone
        weight_map |= dict.fromkeys(stored, file)
    if writes and len(files) > 1:
        total = sum(_stored_bytes(tune_sd[name], dtype) for names in files for name in names)
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        (Path(folder) / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _plan_files(
    tune_sd: Mapping[str, Tensor], dtype: torch.dtype | None, max_shard_bytes: int
) -> list[list[str]]:
    """Names by file, in order."""
    files: list[list[str]] = [[]]
    filled = 0
    for name, tensor in tune_sd.items():
        size = _stored_bytes(tensor, dtype)
        if files[-1] and filled + size > max_shard_bytes:
            files.append([])
            filled = 0
        files[-1].append(name)
        filled += size
    return files


def _stored_bytes(tensor: Tensor, dtype: torch.dtype | None) -> int:
    return tensor.numel() * (dtype or tensor.dtype).itemsize


def load_weights(model: nn.Module, checkpoint_dir: str | Path) -> None:
    """Load a folder's weights into a torchtune model, every base weight exactly once.

    Weights are read one by one, and of a sharded model only what this rank holds: nothing else
    needs memory. Adapter parameters of a LoRA model keep what they have. Weights are cast to the
    model's dtype.

    Raises:
        ConfigError: the model was built for another architecture; names the first difference.
    """
    folder = resolve_checkpoint_dir(checkpoint_dir)
    _check_architecture(model, read_hf_config(folder), folder)
    stored = stored_weights(folder)
    expected = {name: t for name, t in model.state_dict().items() if not is_adapter_name(name)}
    misfit = f"checkpoint_dir: {folder} does not fit the model"
    for name, tensor in expected.items():
        if name not in stored:
            raise ConfigError(f"{misfit}: {name} {list(tensor.shape)} is not in the checkpoint")
        shape = stored[name].shape
        if shape != tensor.shape:
            raise ConfigError(
                f"{misfit}: {name} is {list(shape)} in the checkpoint, {list(tensor.shape)} in the model"
            )
    for name, weight in stored.items():
        if name not in expected:
            raise ConfigError(f"{misfit}: {name} {list(weight.shape)} is not in the model")
    for name, tensor in expected.items():
        rows = rows_of(tensor)
        if rows.start < rows.stop:
            share_of(tensor).copy_(stored[name].rows(rows))


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
