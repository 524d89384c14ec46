"""Mistakes in a config or a command: one line that names them, status 2, and no model is loaded."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import torch
from recipe_runs import MODULES, SMALL, own_lines, run, set_up

from grpo.config import ConfigError
from grpo.models import tiny_model_dir

TINY = "--config=tiny/full_single_device"
JSONL = "dataset={{_component_: grpo.data.jsonl_dataset, path: {}}}"

# Command line after the recipe's name, and how the line begins after "error: ".
MISTAKES = [
    ([TINY, "sead=1"], "sead: unknown key (did you mean 'seed'?)"),
    ([TINY, "loss.kl_coef=0.1"], "loss.kl_coef: unknown argument of grpo.loss.grpo_loss (did you mean"),
    ([TINY, "rewards.0.wieght=2"], "rewards.0.wieght: unknown argument"),
    ([TINY, "~grpo_samples"], "grpo_samples: required key is missing"),
    ([TINY, "batch_size=four"], "batch_size: expected an integer, got 'four'"),
    ([TINY, "grpo_samples=1"], "grpo_samples: must be at least 2, got 1"),
    ([TINY, "forward_batch_size=0"], "forward_batch_size: must be at least 1, got 0"),
    ([TINY, "temperature=-1"], "temperature: must be more than 0, got -1"),
    ([TINY, "dtype=fp16"], "dtype: expected 'fp32' or 'bf16', got 'fp16'"),
    ([TINY, "rewards.1.name=mean"], "rewards.1.name: reward/mean is the sum of all rewards; set another"),
    ([TINY, "seed=4294967296"], "seed: must be at most 4294967295, got 4294967296"),
    ([TINY, "output_dir=~/x"], "output_dir: ~ is not expanded, write it out; got '~/x'"),
    (
        [TINY, "rewards.1={_component_: fractions.Fraction}"],
        "rewards: fractions.Fraction makes a Fraction, which cannot be called with a sample; expected",
    ),
    (
        [TINY, "loss={_component_: torch.nn.MSELoss}"],
        "loss: torch.nn.MSELoss makes a MSELoss without needs_reference; expected one like grpo.loss.",
    ),
    (
        [TINY, "tokenizer={_component_: fractions.Fraction}"],
        "tokenizer: fractions.Fraction makes a Fraction without stop_ids; expected one like grpo.models.",
    ),
    ([TINY, "advantage={_component_: fractions.Fraction}"], "advantage: fractions.Fraction makes a Fraction"),
    (
        [TINY, "model={_component_: torch.nn.Linear, in_features: 1, out_features: 1}"],
        "model: torch.nn.Linear makes a Linear, expected a torchtune TransformerDecoder",
    ),
    ([TINY, "stop_token_ids=[2, 110]"], "stop_token_ids: the tokenizer has no id 110 (its ids end at 103)"),
    ([TINY, "output_dir=/dev/null/x"], "output_dir: cannot write in /dev/null/x: Not a directory"),
    ([TINY, "device=cuda:99"], "device: cuda:99 is not here; torch sees "),
    ([TINY, "epochs=1", "num_steps=1"], "num_steps: set exactly one of num_steps and epochs"),
    ([TINY, "max_prompt_tokens=128"], "max_prompt_tokens: max_prompt_tokens (128) + max_generated_tokens ("),
    ([TINY, *SMALL, "max_prompt_tokens=2"], "max_prompt_tokens: all 64 prompts are longer than 2 tokens"),
    ([TINY, "optimizer=torch.optim.AdamV"], "optimizer._component_: torch.optim has no 'AdamV' (did you"),
    ([TINY, "optimizer.lr=-1"], "optimizer: Invalid learning rate: -1"),
    ([TINY, "optimizer.betas=[0.9,2]"], "optimizer: Invalid beta parameter"),
    ([TINY, "lr_scheduler.num_warmup_steps=-3"], "lr_scheduler.num_warmup_steps must be 0 or more, got -3"),
    ([TINY, "checkpointer.checkpoint_dir=missing"], "checkpointer.checkpoint_dir: no folder missing"),
    ([TINY, "checkpointer.checkpoint_dir=no_weights"], "checkpointer.checkpoint_dir: no weights in no_"),
    ([TINY, JSONL.format("missing.jsonl")], "dataset: dataset path: missing.jsonl does not exist"),
    ([TINY, JSONL.format("other.jsonl")], "dataset: other.jsonl:1: no column 'question'"),
    ([TINY, JSONL.format("torn.jsonl")], "torn.jsonl:2: not valid JSON"),
    ([TINY, "dataset.size=8", "batch_size=9"], "batch_size: 9 prompts a batch, but the dataset has 8"),
    (
        [TINY, *SMALL, "~num_steps", "epochs=1", "dataset.size=4", "gradient_accumulation_steps=2"],
        "epochs: 1 of 1 batches are less than one step",
    ),
    ([TINY, "eval_every_n_steps=1", "~eval_dataset"], "eval_every_n_steps: needs eval_dataset"),
    ([TINY, "prompt.template='{q}'"], "prompt: RawPrompt template: "),
    (["--config", "tiny/full_single_devise"], "--config: no file and no packaged config named"),
    ([], "--config: expected one config"),
    ([TINY, "--seed", "1"], "--seed: unknown option"),
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with files that are wrong each in its way."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "no_weights").mkdir()
    shutil.copy(tiny_model_dir() / "config.json", tmp_path / "no_weights")
    (tmp_path / "other.jsonl").write_text('{"problem": "1+1", "answer": "2"}\n')
    (tmp_path / "torn.jsonl").write_text('{"question": "1+1", "answer": "2"}\n{"question": "1+')
    return tmp_path


def one_line(
    kind: str, argv: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """Run the recipe's main as ``tune run`` does; its only line on stderr, after ``error: ``."""

    def never(*args: object, **kwargs: object) -> None:
        pytest.fail("a model was loaded")

    monkeypatch.setattr(MODULES[kind], "load_model", never)
    monkeypatch.setattr(sys, "argv", [MODULES[kind].__name__, *argv])
    with pytest.raises(SystemExit) as caught:
        MODULES[kind].recipe_main()
    assert caught.value.code == 2
    err = own_lines(capsys.readouterr().err)
    assert err.startswith("error: ") and err.endswith("\n") and err.count("\n") == 1
    return err.removeprefix("error: ").rstrip("\n")


@pytest.mark.parametrize(("argv", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_a_mistake_is_one_line(
    argv: list[str],
    message: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert one_line("full", argv, monkeypatch, capsys).startswith(message)
    assert not (folder / "outputs").exists()


@pytest.mark.parametrize(
    ("kind", "overrides", "message"),
    [
        (
            "lora",
            ["model.lora_dropout=0.1"],
            "model: layers.0.attn.q_proj.dropout has dropout 0.1, expected 0",
        ),
        ("lora", ["model.attn_dropout=0.1"], "model: layers.0.attn has dropout 0.1, expected 0"),
        ("full", ["model.attn_dropout=0.1"], "model: layers.0.attn has dropout 0.1, expected 0"),
        ("lora", ["model={_component_: grpo.models.tiny}"], "model: grpo.models.tiny has no adapters;"),
        (
            "full",
            ["model={_component_: grpo.models.lora_tiny, lora_attn_modules: [q_proj]}"],
            "model: grpo.models.lora_tiny has LoRA adapters; grpo_lora_finetune_* trains such a model",
        ),
    ],
    ids=["lora_dropout", "lora_attn_dropout", "full_attn_dropout", "full_model", "lora_model"],
)
def test_lora_07_a_model_that_cannot_be_trained_so_is_refused(
    kind: str,
    overrides: list[str],
    message: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = [f"--config=tiny/{kind}_single_device", *overrides]
    assert one_line(kind, argv, monkeypatch, capsys).startswith(message)
    assert not (folder / "outputs").exists()


def test_another_runs_checkpoints_are_not_written_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("full", folder / "out", "num_steps=1")
    before = {path: path.read_bytes() for path in (folder / "out").rglob("*") if path.is_file()}
    capsys.readouterr()
    line = one_line("full", [TINY, *SMALL, "output_dir=out"], monkeypatch, capsys)
    assert line.startswith(
        "output_dir: out already holds step_1; continue that run with resume_from_checkpoint"
    )
    assert {path: path.read_bytes() for path in (folder / "out").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "seed=1",
            "cannot resume: the checkpoint's data position was taken with seed 0, this run has seed 1",
        ),
        ("batch_size=2", "cannot resume: the checkpoint's data position was taken with batch_size 4"),
        ("dataset.size=65", "cannot resume: the checkpoint's data position was taken with num_prompts 64"),
    ],
)
def test_a_resume_with_other_data_is_refused(override: str, message: str, tmp_path: Path) -> None:
    run("full", tmp_path, "num_steps=1")
    with pytest.raises(ConfigError) as caught:
        set_up("full", tmp_path, "resume_from_checkpoint=true", override)
    assert str(caught.value).startswith(message)


def test_a_resume_with_another_adapter_or_a_damaged_file_is_refused(tmp_path: Path) -> None:
    run("lora", tmp_path, "num_steps=1")
    with pytest.raises(ConfigError, match=r"lora_a.* is \[16, \d+\], the model's \[4, \d+\]"):
        set_up("lora", tmp_path, "resume_from_checkpoint=true", "model.lora_rank=4")
    with pytest.raises(ConfigError, match="holds a LoRA adapter, which this config's model does not train"):
        set_up("full", tmp_path, "resume_from_checkpoint=true")
    weights = tmp_path / "step_1" / "adapter_model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(ConfigError, match=r"adapter_model\.safetensors: damaged"):
        set_up("lora", tmp_path, "resume_from_checkpoint=true")


def test_no_test_left_a_default_changed() -> None:
    """Loading a model in bf16 changes torch's default type for a moment only."""
    assert torch.get_default_dtype() is torch.float32
