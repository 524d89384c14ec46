"""Runs of the recipes, cut down to parts of a second a step, and what they leave behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpo_full_finetune_distributed as full_distributed
import grpo_full_finetune_single_device as full_recipe
import grpo_lora_finetune_distributed as lora_distributed
import grpo_lora_finetune_single_device as lora_recipe
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader

from grpo.config import DistributedConfig, TrainConfig, load_config
from grpo.models.shares import whole_of

MODULES = {"full": full_recipe, "lora": lora_recipe}
CLASSES = {
    "full": full_recipe.GRPOFullFinetuneSingleDevice,
    "lora": lora_recipe.GRPOLoRAFinetuneSingleDevice,
}
DISTRIBUTED_CLASSES = {
    "full": full_distributed.GRPOFullFinetuneDistributed,
    "lora": lora_distributed.GRPOLoRAFinetuneDistributed,
}

# The rewards of the configs, and one that leaves no group flat.
REWARDS = (
    {"_component_": "grpo.rewards.ExactAnswer", "success": True, "name": "correct"},
    {"_component_": "grpo.rewards.TagFormat", "tags": ["answer"], "weight": 0.1, "name": "format"},
    {"_component_": "recipe_parts.Alternates", "weight": 0.1, "name": "spread"},
)


def rewards(*nodes: dict[str, Any]) -> str:
    """The override that sets the rewards."""
    return f"rewards={json.dumps(nodes)}"


# The rate is constant unless a test asks for another schedule: only so may a run be extended without
# changing its start.
SMALL = (
    rewards(*REWARDS),
    "batch_size=4",
    "grpo_samples=8",
    "forward_batch_size=64",
    "micro_batch_size=64",
    "num_steps=3",
    "dataset.size=64",
    "lr_scheduler=null",
    "optimizer.lr=1e-4",
    "save_every_n_steps=null",
    "checkpointer.keep_last_n_checkpoints=null",
    "log_rollouts_every_n_steps=1",
    "~eval_dataset",
    "~eval_every_n_steps",
)
# Hundredths of a second a step, for tests that count steps and do not care what is learnt.
TINY_STEPS = ("batch_size=1", "grpo_samples=2")

EVAL = ("eval_dataset={_component_: grpo.data.addition_dataset, size: 6, split: test}",)

# The weights that a checkpoint of each kind holds.
WEIGHTS = {"full": "model.safetensors", "lora": "adapter_model.safetensors"}


def config(kind: str, output_dir: Path, *overrides: str) -> TrainConfig:
    return load_config(
        f"tiny/{kind}_single_device", [*SMALL, f"output_dir={output_dir}", *overrides], TrainConfig
    )


def set_up(kind: str, output_dir: Path, *overrides: str) -> Any:
    """A recipe that is ready to train."""
    recipe = CLASSES[kind]()
    recipe.setup(config(kind, output_dir, *overrides))
    return recipe


def distributed_config(kind: str, output_dir: Path, *overrides: str) -> DistributedConfig:
    return load_config(
        f"tiny/{kind}_distributed", [*SMALL, f"output_dir={output_dir}", *overrides], DistributedConfig
    )


def set_up_distributed(kind: str, output_dir: Path, *overrides: str) -> Any:
    """A distributed recipe that is ready to train, on a rank."""
    recipe = DISTRIBUTED_CLASSES[kind]()
    recipe.setup(distributed_config(kind, output_dir, *overrides))
    return recipe


def run_distributed(kind: str, output_dir: Path, *overrides: str) -> dict[str, Tensor]:
    """What is trained, whole, after a distributed recipe has trained, on a rank."""
    recipe = set_up_distributed(kind, output_dir, *overrides)
    recipe.train()
    trained = {
        name: whole_of(value) for name, value in recipe.model.named_parameters() if value.requires_grad
    }
    recipe.ranks.close()
    return trained


def run(kind: str, output_dir: Path, *overrides: str) -> Any:
    """A recipe that has trained."""
    recipe = set_up(kind, output_dir, *overrides)
    recipe.train()
    return recipe


def weights(recipe: Any) -> dict[str, Tensor]:
    """A copy of what is trained."""
    named = recipe.model.named_parameters()
    return {name: p.detach().clone() for name, p in named if p.requires_grad}


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def metrics(output_dir: Path) -> list[dict[str, Any]]:
    """The lines of ``metrics.jsonl`` that belong to training steps."""
    return [record for record in records(output_dir / "metrics.jsonl") if record["step"] > 0]


def reproducible(output_dir: Path) -> list[dict[str, Any]]:
    """All of ``metrics.jsonl`` but what depends on the clock and the machine's memory."""
    machine = ("time/", "tokens_per_second", "peak_memory")
    return [
        {key: value for key, value in record.items() if not key.startswith(machine)}
        for record in records(output_dir / "metrics.jsonl")
    ]


def assert_same_run(kind: str, one: Path, other: Path, last_step: int) -> None:
    """Same samples, same numbers, and the same bits in weights and optimizer."""
    assert (one / "rollouts.jsonl").read_bytes() == (other / "rollouts.jsonl").read_bytes()
    assert reproducible(one) == reproducible(other)
    saved = [folder / f"step_{last_step}" for folder in (one, other)]
    first, second = ((folder / WEIGHTS[kind]).read_bytes() for folder in saved)
    assert first == second
    assert_same(*map(saved_state, saved))


def saved_state(step: Path) -> dict[str, Any]:
    """All that a checkpoint holds beside the weights, tensors whole, whatever number of ranks wrote it."""
    reader = FileSystemReader(step / "optimizer")
    tensors = {
        name: torch.zeros(stored.size, dtype=stored.properties.dtype)
        for name, stored in reader.read_metadata().state_dict_metadata.items()
    }
    dcp.load(tensors, storage_reader=reader, no_dist=True)
    files = [step / "training_state.pt", *sorted(step.glob("rank_*.pt"))]
    return {
        "optimizer": tensors,
        **{file.name: torch.load(file, weights_only=True) for file in files},
    }


def assert_same(one: Any, other: Any) -> None:
    """Two trees of states are equal, tensors bit by bit."""
    assert type(one) is type(other)
    if isinstance(one, Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for item, its_like in zip(one, other, strict=True):
            assert_same(item, its_like)
    else:
        assert one == other


def start_cli(kind: str, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """``tune run`` of the recipe for one device in ``folder``, as a user starts it."""
    return _start("torchtune._cli.tune", folder, MODULES[kind].__name__, *arguments)


def start_ranks_cli(
    kind: str, folder: Path, launch: str, *overrides: str, program: str = "grpo.cli"
) -> subprocess.Popen[str]:
    """The distributed recipe in ``folder``, as a user starts it.

    Args:
        launch: options of torchrun, separated by spaces.
        overrides: of the recipe's tiny config.
        program: the module of ``grpo`` or of ``tune``.
    """
    recipe = DISTRIBUTED_CLASSES[kind].__module__
    config = ("--config", f"tiny/{kind}_distributed")
    return _start(program, folder, *launch.split(), recipe, *config, *overrides)


def _start(program: str, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    path = [str(Path(__file__).parent), *filter(None, sys.path)]
    return subprocess.Popen(
        [sys.executable, "-m", program, "run", *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit status, stdout, and stderr without the notices of torchao and torchtune."""
    out, err = process.communicate(timeout=300)
    return process.returncode, out, own_lines(err)


def own_lines(stderr: str) -> str:
    notices = ("Skipping import of cpp extensions", "Setting manual seed")
    return "".join(line for line in stderr.splitlines(keepends=True) if not line.startswith(notices))
