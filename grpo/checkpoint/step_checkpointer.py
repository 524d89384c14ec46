"""Checkpoints by step: weights that other tools read, and all that an exact resume needs."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer
from torchtune.modules.peft import get_adapter_params
from tqdm import tqdm

from grpo.checkpoint.files import read_manifest, remove_folder, step_folders, write_folder
from grpo.checkpoint.optimizer_state import load_state, split_state, write_tensors
from grpo.checkpoint.rng import load_rng_state, rng_state
from grpo.config.errors import ConfigError
from grpo.distributed import SOLO, Ranks
from grpo.models.adapters import load_peft_adapter, save_peft_adapter
from grpo.models.locations import resolve_checkpoint_dir
from grpo.models.shares import copy_share, whole_of
from grpo.models.weights import check_checkpoint_dir, load_weights, read_hf_config, save_hf_weights

FORMAT_VERSION = 2
STATE_FILE = "training_state.pt"
ADAPTER_FILE = "adapter_model.safetensors"
# What a Hugging Face folder holds beside the weights, copied so that a step folder loads as it is.
COMPANIONS = ("config.json", "generation_config.json", "tokenizer*", "vocab.json", "merges.txt", "*.jinja")


class Stateful(Protocol):
    """Anything whose state is saved and restored: optimizer, scheduler, loader, engine."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> Any: ...


class RankStateful(Stateful, Protocol):
    """Something that every rank has for itself, such as its engine."""

    def reseed(self, number: int) -> None:
        """Begin a new stream of random numbers: those of another number of ranks cannot go on."""
        ...


_NOTHING: Mapping[str, RankStateful] = MappingProxyType({})


class StepCheckpointer:
    """Writes ``output_dir/step_N`` and continues from the newest complete one.

    Args:
        checkpoint_dir: Hugging Face folder of the starting weights, or ``tiny``.
        output_dir: where the step folders go.
        keep_last_n_checkpoints: delete older ones after each save; None keeps all.
        ranks: all that train the model; every one of them calls each method.
    """

    def __init__(
        self,
        checkpoint_dir: str,
        *,
        output_dir: str,
        keep_last_n_checkpoints: int | None = None,
        ranks: Ranks = SOLO,
    ) -> None:
        self.check(checkpoint_dir=checkpoint_dir, keep_last_n_checkpoints=keep_last_n_checkpoints)
        self.checkpoint_dir = resolve_checkpoint_dir(checkpoint_dir)
        self.output_dir = Path(output_dir)
        self._keep_last = keep_last_n_checkpoints
        self._ranks = ranks

    @staticmethod
    def check(checkpoint_dir: str, keep_last_n_checkpoints: int | None = None) -> None:
        """Raise ConfigError for a folder without weights or a number that keeps nothing."""
        if keep_last_n_checkpoints is not None and keep_last_n_checkpoints < 1:
            raise ConfigError(f"keep_last_n_checkpoints: expected at least 1, got {keep_last_n_checkpoints}")
        check_checkpoint_dir(checkpoint_dir)

    def latest(self) -> Path | None:
        """The complete step folder of the largest number, by number and not by name."""
        folders = step_folders(self.output_dir)
        return folders[max(folders)] if folders else None

    def refuse_to_overwrite(self) -> None:
        """Raise ConfigError when a new run would write over another run's checkpoints or logs."""
        written = [*self.output_dir.glob("step_*"), *self.output_dir.glob("*.jsonl")]
        latest = self.latest() or next((path for path in sorted(written) if _holds_anything(path)), None)
        if latest is not None:
            raise ConfigError(
                f"output_dir: {self.output_dir} already holds {latest.name}; continue that run with "
                "resume_from_checkpoint=true, or choose another folder"
            )

    def save(
        self,
        step: int,
        model: nn.Module,
        stateful: Mapping[str, Stateful],
        config_yaml: str,
        own: Mapping[str, RankStateful] = _NOTHING,
    ) -> Path:
        """Write ``step_N``: beside, synced, renamed. A step that is already there is left alone.

        Args:
            step: training steps that are done.
            model: full weights are written in Hugging Face format, adapters in PEFT's.
            stateful: by name, what :meth:`resume` will restore, and is the same on every rank.
            config_yaml: the resolved config of the run.
            own: the same of what each rank has for itself.
        """
        final = self.output_dir / f"step_{step}"
        if self._ranks.from_main(step in step_folders(self.output_dir)):
            return final

        def write(folder: Path) -> None:
            self._write_weights(folder, model)
            parts = {}
            for name, part in stateful.items():
                if isinstance(part, Optimizer):
                    tensors, parts[name] = split_state(part)
                    write_tensors(folder / name, tensors)
                else:
                    parts[name] = part.state_dict()
            own_parts = {name: part.state_dict() for name, part in own.items()}
            torch.save({"rng": rng_state(), "parts": own_parts}, folder / _rank_file(self._ranks.rank))
            if self._ranks.is_main:
                state = {"step": step, "ranks": self._ranks.size, "parts": parts}
                torch.save(state, folder / STATE_FILE)
                (folder / "config.yaml").write_text(config_yaml)

        about = {"format_version": FORMAT_VERSION, "step": step, "ranks": self._ranks.size}
        write_folder(final, write, about, self._ranks)
        if self._keep_last is not None and self._ranks.is_main:
            for old in list(step_folders(self.output_dir).values())[: -self._keep_last]:
                remove_folder(old)
        return final

    def resume(
        self, model: nn.Module, stateful: Mapping[str, Stateful], own: Mapping[str, RankStateful] = _NOTHING
    ) -> int:
        """Restore the newest complete checkpoint into what is already built.

        Call it last in set-up: nothing may draw from a generator, or seed one, after it. Where other
        ranks saved than resume, each begins a new stream of its own, a function of its seed and the
        step; everything else is as it was.

        Returns:
            the number of steps that are done; 0 when there is no checkpoint yet.

        Raises:
            ConfigError: the checkpoint is damaged or belongs to another kind of run.
        """
        folder = self._ranks.from_main(self.latest())
        if folder is None:
            return 0
        version = read_manifest(folder, self._ranks)["format_version"]
        if version != FORMAT_VERSION:
            raise ConfigError(f"{folder}: written in format {version}, expected {FORMAT_VERSION}")
        state = torch.load(folder / STATE_FILE, map_location="cpu", weights_only=True)
        same_ranks = state["ranks"] == self._ranks.size
        own_file = folder / _rank_file(self._ranks.rank if same_ranks else 0)
        own_state = torch.load(own_file, map_location="cpu", weights_only=True)
        saved_names = set(state["parts"]) | set(own_state["parts"])
        if missing := (set(stateful) | set(own)) ^ saved_names:
            raise ConfigError(
                f"{folder}: the checkpoint and this config differ in {', '.join(sorted(missing))}; "
                "resume with the config it was saved with"
            )
        self._read_weights(folder, model)
        for name, part in stateful.items():
            if isinstance(part, Optimizer):
                load_state(folder / name, part, state["parts"][name])
            else:
                part.load_state_dict(state["parts"][name])
        for name, part in own.items():
            part.load_state_dict(own_state["parts"][name])
            if not same_ranks:
                part.reseed(state["step"])
        if same_ranks:
            load_rng_state(own_state["rng"])
        elif self._ranks.is_main:
            tqdm.write(
                f"{folder} was saved by {state['ranks']} ranks and is resumed by {self._ranks.size}: "
                "sampling goes on with new random numbers, all else as it was"
            )
        return state["step"]

    def _write_weights(self, folder: Path, model: nn.Module) -> None:
        """All ranks give their shares; rank 0 writes."""
        hf_config = read_hf_config(self.checkpoint_dir)
        adapters = {name: whole_of(p).cpu() for name, p in get_adapter_params(model).items()}
        if adapters:
            if self._ranks.is_main:
                any_lora = next(m for m in model.modules() if hasattr(m, "lora_a"))
                save_peft_adapter(
                    folder,
                    adapters,
                    hf_config,
                    rank=any_lora.rank,
                    alpha=any_lora.alpha,
                    base_model_path=str(self.checkpoint_dir),
                )
            return
        save_hf_weights(folder, model.state_dict(), hf_config, writes=self._ranks.is_main)
        if self._ranks.is_main:
            for pattern in COMPANIONS:
                for path in self.checkpoint_dir.glob(pattern):
                    shutil.copy(path, folder)

    def _read_weights(self, folder: Path, model: nn.Module) -> None:
        adapters = get_adapter_params(model)
        if bool(adapters) != (folder / ADAPTER_FILE).is_file():
            kind = "a LoRA adapter" if not adapters else "full weights"
            raise ConfigError(f"{folder}: holds {kind}, which this config's model does not train")
        if not adapters:
            load_weights(model, folder)
            return
        saved = load_peft_adapter(folder, read_hf_config(self.checkpoint_dir))
        if saved.keys() != adapters.keys():
            different = sorted(saved.keys() ^ adapters.keys())[0]
            raise ConfigError(f"{folder}: its adapter and the model's differ, first in {different}")
        for name, parameter in adapters.items():
            if parameter.shape != saved[name].shape:
                raise ConfigError(
                    f"{folder}: {name} is {list(saved[name].shape)}, the model's {list(parameter.shape)}"
                )
            copy_share(parameter, saved[name])


def _rank_file(rank: int) -> str:
    return f"rank_{rank}.pt"


def _holds_anything(path: Path) -> bool:
    return path.is_dir() or path.stat().st_size > 0
