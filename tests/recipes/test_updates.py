"""What a step does to the weights, however it is cut and computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from recipe_runs import TINY_STEPS, WEIGHTS, metrics, rewards, run, set_up, weights
from torch import Tensor

from grpo.batching import pack
from grpo.rewards import score
from grpo.types import TrainBatch

FLAT = rewards({"_component_": "recipe_parts.constant", "success": True})

# AdamW's first steps turn rounding errors of tiny gradients into whole steps; SGD leaves them tiny.
SGD = "optimizer={_component_: torch.optim.SGD, lr: 0.1}"


def assert_close(one: dict[str, Tensor], other: dict[str, Tensor], atol: float = 1e-6) -> None:
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], atol=atol, rtol=0)


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> bool:
    return any(not torch.equal(before[name], after[name]) for name in before)


def test_two_batches_of_two_prompts_are_one_of_four(kind: str, tmp_path: Path) -> None:
    """The loader gives batches one after the other, so both steps see the same prompts."""
    whole = run(kind, tmp_path / "whole", "num_steps=2")
    parts = run(kind, tmp_path / "parts", "num_steps=2", "batch_size=2", "gradient_accumulation_steps=2")
    rollouts = [(tmp_path / name / "rollouts.jsonl").read_text() for name in ("whole", "parts")]
    assert rollouts[0] == rollouts[1]
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(parts)[name])


def test_micro_batches_and_recomputation_change_nothing(kind: str, tmp_path: Path) -> None:
    settings = {
        "whole": ("micro_batch_size=64",),
        "ones": ("micro_batch_size=1",),
        "twos": ("micro_batch_size=2",),
        "eights": ("micro_batch_size=8", "logits_chunk_size=3"),
        "recomputed": ("enable_activation_checkpointing=true",),
    }
    start = weights(set_up(kind, tmp_path / "start", SGD))
    after = {
        name: weights(run(kind, tmp_path / name, "num_steps=1", SGD, *overrides))
        for name, overrides in settings.items()
    }
    assert max((after["whole"][name] - start[name]).abs().max() for name in start) > 1e-4
    for name in settings:
        assert_close(after[name], after["whole"])
    losses = [metrics(tmp_path / name)[0]["grad_norm"] for name in settings]
    assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-4)


def test_res_06_the_schedule_counts_updates(tmp_path: Path) -> None:
    """Two epochs of ten batches, four updates for each: 80 updates, 40 of them in the first epoch."""
    linear = "lr_scheduler={_component_: grpo.schedule.linear_schedule}"
    overrides = (*TINY_STEPS, FLAT, "dataset.size=10", "~num_steps", "epochs=2", "ppo_epochs=4", linear)
    run("full", tmp_path, *overrides, "optimizer.lr=1.0e-3", "save_every_n_steps=10")
    scheduler = torch.load(tmp_path / "step_10" / "training_state.pt", weights_only=True)["parts"][
        "scheduler"
    ]
    assert scheduler["last_epoch"] == 40
    assert scheduler["_last_lr"] == [pytest.approx(0.5e-3)]
    # The rate of a step is that of its last update, number 4 * step.
    rates = [line["lr"] for line in metrics(tmp_path)]
    assert rates == pytest.approx([1e-3 * (1 - (4 * step - 1) / 80) for step in range(1, 21)])


def test_later_updates_of_a_batch_move_the_ratio(kind: str, tmp_path: Path) -> None:
    run(kind, tmp_path / "one", "num_steps=2", "optimizer.lr=1e-3")
    run(kind, tmp_path / "two", "num_steps=2", "optimizer.lr=1e-3", "ppo_epochs=2")
    assert [line["ratio/max"] for line in metrics(tmp_path / "one")] == [1.0, 1.0]
    second = metrics(tmp_path / "two")[1]
    assert second["ratio/max"] > 1.01 and second["approx_kl"] > 0
    assert second["sampler_gap/max"] < 1e-3


def test_a_flat_batch_skips_the_update(tmp_path: Path) -> None:
    """Nothing to learn: no update, no movement by moments or weight decay, and the run goes on."""
    start = weights(set_up("full", tmp_path, FLAT))
    recipe = run("full", tmp_path, FLAT, "optimizer.weight_decay=0.1")
    assert [line["skipped_updates"] for line in metrics(tmp_path)] == [1, 1, 1]
    assert [line["informative_fraction"] for line in metrics(tmp_path)] == [0, 0, 0]
    assert not changed(start, weights(recipe))
    assert (tmp_path / "step_3").is_dir()


def test_a_flat_batch_still_feels_the_reference(kind: str, tmp_path: Path) -> None:

    run(kind, tmp_path, FLAT, "loss.kl_coeff=0.1", "num_steps=1", "batch_size=2", "grpo_samples=4")
    assert metrics(tmp_path)[0]["skipped_updates"] == 0


def test_a_gradient_that_is_not_finite_skips_the_update(kind: str, tmp_path: Path) -> None:
    recipe = run(kind, tmp_path, "loss={_component_: recipe_parts.NaNAt, call: 2}", "save_every_n_steps=1")
    lines = metrics(tmp_path)
    assert [line["skipped_updates"] for line in lines] == [0, 1, 0]
    assert lines[1]["grad_norm"] is None
    saved = [(tmp_path / f"step_{step}" / WEIGHTS[kind]).read_bytes() for step in (1, 2, 3)]
    assert saved[0] == saved[1] != saved[2]
    assert all(value.isfinite().all() for value in weights(recipe).values())


def test_bf16_keeps_what_is_trained_in_float32(kind: str, tmp_path: Path) -> None:
    recipe = set_up(kind, tmp_path, "dtype=bf16", "num_steps=2", "batch_size=2", "grpo_samples=4")
    start = weights(recipe)
    recipe.train()
    assert {value.dtype for value in weights(recipe).values()} == {torch.float32}
    frozen = {p.dtype for p in recipe.model.parameters() if not p.requires_grad and p.ndim == 2}
    assert frozen == ({torch.bfloat16} if kind == "lora" else set())
    assert changed(start, weights(recipe))
    assert all(line["sampler_gap/mean"] < 0.05 for line in metrics(tmp_path))


def test_compiled_layers_give_the_same_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced, differentiated and guarded as by default; only the C++ compiler (a minute) is left out."""
    compiled_by_default = torch.nn.Module.compile
    graphs = []

    def compile_without_inductor(module: torch.nn.Module, **settings: Any) -> None:
        graphs.append(settings)
        compiled_by_default(module, backend="aot_eager", fullgraph=True, **settings)

    monkeypatch.setattr(torch.nn.Module, "compile", compile_without_inductor)
    overrides = ("num_steps=2", SGD)
    eager = run("full", tmp_path / "eager", *overrides)
    assert not graphs
    compiled = run("full", tmp_path / "compiled", *overrides, "compile=true")
    assert len(graphs) == 4
    assert changed(weights(set_up("full", tmp_path / "start")), weights(compiled))
    assert_close(weights(eager), weights(compiled), atol=1e-5)
    torch.compiler.reset()


def first_batch(recipe: Any) -> TrainBatch:
    """The first batch of a run, as the loop makes it, flat groups included."""
    rollouts = recipe.engine.generate(recipe.prompts.take(1), recipe.sampling, recipe.cfg.grpo_samples)
    scored = score(rollouts, recipe.rewards)
    advantages = recipe.advantage(scored.rewards, rollouts.group_ids)
    return pack(scored, advantages, recipe.tokenizer.pad_id, keep_flat=True)


def test_lora_07_two_passes_are_equal_and_the_first_ratio_is_1(kind: str, tmp_path: Path) -> None:
    recipe = set_up(kind, tmp_path, "loss.kl_coeff=0.1")
    batch = first_batch(recipe)
    old = recipe.policy.frozen_logprobs(batch, 8)
    assert torch.equal(old, recipe.policy.frozen_logprobs(batch, 8))
    with recipe.reference():
        ref = recipe.policy.frozen_logprobs(batch, 8)
    policy, _ = recipe.policy.logprobs(batch)
    output = recipe.loss(policy, batch.with_logprobs(old=old, ref=ref))
    assert float(output.maxima["ratio/max"]) == pytest.approx(1, abs=1e-5)
    assert abs(float(output.sums["kl_loss"][0])) < 1e-6
    # And the same in a run: the numbers of its first step.
    recipe.train()
    first = metrics(tmp_path)[0]
    assert first["ratio/max"] == pytest.approx(1, abs=1e-5) and first["kl_loss"] < 1e-6
    assert first["sampler_gap/max"] < 1e-4
