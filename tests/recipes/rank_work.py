"""What ranks do in tests: functions that a child process can import."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from recipe_runs import run_distributed, set_up_distributed
from torch import Tensor

from grpo.checkpoint.optimizer_state import split_state
from grpo.models.shares import whole_of


def runs(cases: dict[str, tuple[str, Path, tuple[str, ...]]]) -> dict[str, dict[str, Tensor]]:
    """What is trained after each run: (kind, folder, overrides) by name."""
    after = {}
    for name, (kind, folder, overrides) in cases.items():
        after[name] = run_distributed(kind, folder, *overrides)
        os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
    return after


def runs_without_inductor(
    cases: dict[str, tuple[str, Path, tuple[str, ...]]],
) -> dict[str, dict[str, Tensor]]:
    """:func:`runs`, compiled layers traced and differentiated, but not by the C++ compiler (a minute)."""
    compiled_by_default = torch.nn.Module.compile
    torch.nn.Module.compile = lambda module, **settings: compiled_by_default(
        module, backend="aot_eager", **settings
    )
    return runs(cases)


def states(kind: str, folder: Path, overrides: tuple[str, ...], train: bool) -> dict[str, Any]:
    """All that a resumed run goes on from, whole, as each rank sees it."""
    recipe = set_up_distributed(kind, folder, *overrides)
    if train:
        recipe.train()
    tensors, rest = split_state(recipe.optimizer)
    state = {
        "weights": {name: whole_of(value) for name, value in recipe.model.named_parameters()},
        "optimizer": {name: whole_of(value) for name, value in tensors.items()},
        "optimizer_settings": rest,
        "scheduler": recipe.scheduler.state_dict(),
        "prompts": recipe.prompts.state_dict(),
        "engine": recipe.engine.state_dict(),
    }
    recipe.ranks.close()
    return state


def passes(folder: Path) -> dict[str, int]:
    """Passes of a rank with prompts of its own, sampled with ``gather_weights=never``."""
    recipe = set_up_distributed("full", folder, "gather_weights=never", "forward_batch_size=2")
    weights, made = recipe.engine._weights, 0
    start_pass = weights.start_pass

    def counted() -> None:
        nonlocal made
        made += 1
        start_pass()

    weights.start_pass = counted
    rank = recipe.ranks.rank
    prompts = recipe.prompts.take(1)
    # Three prompts for rank 0, one for rank 1, none for rank 2.
    own = {0: slice(0, 3), 1: slice(3, 4), 2: slice(0, 0)}[rank]
    share = replace(
        prompts,
        prompt_ids=prompts.prompt_ids[own],
        tasks=prompts.tasks[own],
        group_ids=prompts.group_ids[own],
        prefills=prompts.prefills[own],
    )
    rollouts = recipe.engine.generate(share, recipe.sampling, 2)
    recipe.ranks.close()
    lengths = [len(ids) for ids in rollouts.completion_ids]
    # A chunk is one prompt's two samples: a pass for the prompt, and one for each token but the last.
    expected = sum(max(lengths[i : i + 2]) for i in range(0, len(lengths), 2))
    return {"made": made, "expected": expected, "joined": weights.passes_joined}
