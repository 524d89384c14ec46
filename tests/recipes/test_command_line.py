"""The recipes as users run them, and what other libraries make of the outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from recipe_runs import SMALL, finish, metrics, records, set_up, start_cli

from grpo.config import TrainConfig, config_yaml, load_config
from grpo.generation import NativeEngine
from grpo.models import tiny_model_dir
from grpo.types import SamplingParams

KEYS = [
    *(
        "step",
        "loss",
        "policy_loss",
        "kl_loss",
        "reward/mean",
        "reward/std",
        "reward/correct",
        "reward/format",
    ),
    *("success_rate", "informative_fraction", "clip_fraction", "approx_kl", "ratio/max", "entropy"),
    *("response_length/mean", "response_length/max", "truncated_fraction", "undefined_tokens"),
    *("reward_errors", "grad_norm", "lr", "tokens_per_second", "time/generate", "time/score"),
    *("time/update", "time/total", "peak_memory_gib"),
]


@pytest.fixture(scope="module", params=["full", "lora"])
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Kind and folder of a run of three steps, started from the command line in an empty folder."""
    folder = tmp_path_factory.mktemp(request.param)
    name = f"tiny/{request.param}_single_device"
    process = start_cli(request.param, folder, "--config", name, *SMALL, "output_dir=out")
    status, _, err = finish(process)
    assert status == 0, err
    assert "step/s" in err and "Warning" not in err
    assert [path.name for path in folder.iterdir()] == ["out"]
    return request.param, folder / "out"


def test_metrics_hold_every_promised_number(finished: tuple[str, Path]) -> None:
    _, out = finished
    lines = metrics(out)
    assert [line["step"] for line in lines] == [1, 2, 3]
    for line in lines:
        assert set(KEYS) <= line.keys()
        assert all(line[key] is not None for key in KEYS)
        assert 0 <= line["success_rate"] <= 1 and line["time/total"] > 0 and line["peak_memory_gib"] > 0
        assert line["grad_norm"] > 0 and line["informative_fraction"] == 1
    assert [line["lr"] for line in lines] == [1e-4] * 3


def test_rollouts_show_what_was_sampled_and_earned(finished: tuple[str, Path]) -> None:
    _, out = finished
    lines = records(out / "rollouts.jsonl")
    assert len(lines) == 3 * 4 * 8
    assert {line["step"] for line in lines} == {1, 2, 3}
    for line in lines:
        assert line["question"] in line["task"]
        parts = line["parts"]
        assert line["reward"] == pytest.approx(
            parts["correct"] + 0.1 * parts["format"] + 0.1 * parts["spread"]
        )
        assert line["success"] == (f"<answer>{line['answer']}</answer>" in line["completion"])
    groups = {line["group"] for line in lines}
    for group in groups:
        assert sum(line["advantage"] for line in lines if line["group"] == group) == pytest.approx(
            0, abs=1e-5
        )
    for line in metrics(out):
        rewards = [other["reward"] for other in lines if other["step"] == line["step"]]
        assert line["reward/mean"] == pytest.approx(sum(rewards) / len(rewards))


def test_the_config_loads_back(finished: tuple[str, Path]) -> None:
    _, out = finished
    cfg = load_config(str(out / "config.yaml"), [], TrainConfig)
    assert cfg.batch_size == 4 and cfg.lr_scheduler is None and cfg.output_dir == "out"
    for copy in ("config.yaml", "step_3/config.yaml"):
        assert (out / copy).read_text() == config_yaml(cfg)


def greedy(recipe: Any) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts and greedy completions of a recipe's engine."""
    prompts = recipe.prompts.take(2)
    engine: NativeEngine = recipe.engine
    sampling = SamplingParams(max_generated_tokens=8, temperature=0.0, stop_ids=recipe.sampling.stop_ids)
    return prompts.prompt_ids, engine.generate(prompts, sampling).completion_ids


def transformers_greedy(model: Any, prompts: list[list[int]], stop_ids: tuple[int, ...]) -> list[list[int]]:
    """Greedy completions by plain repeated forward passes of a transformers model."""
    completions = []
    for prompt in prompts:
        ids = list(prompt)
        while len(ids) < len(prompt) + 8 and not set(ids[len(prompt) :]) & set(stop_ids):
            with torch.no_grad():
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        completions.append(ids[len(prompt) :])
    return completions


def test_other_libraries_load_the_step_folder(
    finished: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    # PEFT refuses to load anything beside a torchao older than 0.16, which torchtune needs.
    monkeypatch.setattr("peft.tuners.lora.torchao.is_torchao_available", lambda: False)
    kind, out = finished
    step = out / "step_3"
    if kind == "full":
        recipe = set_up(kind, tmp_path, f"checkpointer.checkpoint_dir={step}")
        model = AutoModelForCausalLM.from_pretrained(step, dtype=torch.float32)
    else:
        recipe = set_up(kind, out, "resume_from_checkpoint=true")
        assert recipe.steps_done == 3
        base = AutoModelForCausalLM.from_pretrained(tiny_model_dir(), dtype=torch.float32)
        model = PeftModel.from_pretrained(base, step)
        saved = json.loads((step / "adapter_config.json").read_text())
        assert (saved["r"], saved["lora_alpha"]) == (16, 32)
    prompts, completions = greedy(recipe)
    assert len(prompts) == 8
    assert transformers_greedy(model.eval(), prompts, recipe.sampling.stop_ids) == completions
    row = torch.tensor(prompts[:1])
    with torch.no_grad():
        torch.testing.assert_close(model(row).logits, recipe.model(row), atol=1e-4, rtol=0)


def test_mistakes_end_with_one_line_and_status_2(tmp_path: Path) -> None:
    """Both at once: most of their time is Python importing torch."""
    started = {
        "sead=1": "sead: unknown key (did you mean 'seed'?)",
        "batch_size=65 dataset.size=64": "batch_size: 65 prompts a batch, but the dataset has 64; "
        "take a smaller batch, or drop_last=false",
    }
    config = ("--config", "tiny/full_single_device")
    processes = [start_cli("full", tmp_path, *config, *mistake.split()) for mistake in started]
    for process, message in zip(processes, started.values(), strict=True):
        status, out, err = finish(process)
        assert (status, out, err) == (2, "", f"error: {message}\n")
    assert not list(tmp_path.iterdir())
