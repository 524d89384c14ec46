"""The `grpo` command, and stock `tune run`, with a user's own folder of recipe, parts and config."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import yaml
from torchtune._cli import tune
from torchtune._cli.download import Download

from grpo import cli
from grpo.config import registry

FULL = "grpo_full_finetune_single_device"

RECIPE = """
from grpo.config import TrainConfig, parse

@parse(TrainConfig)
def recipe_main(cfg):
    print(f"batch_size is {cfg.batch_size}, loss is {cfg.loss['_component_']}")

if __name__ == "__main__":
    recipe_main()
"""


def grpo(monkeypatch: pytest.MonkeyPatch, *argv: str) -> None:
    monkeypatch.setattr(sys, "argv", ["grpo", *argv])
    cli.main()


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One packaged config for the full recipe, none for the others."""
    folder = tmp_path / "packaged"
    (folder / "tiny").mkdir(parents=True)
    (folder / "tiny" / "full.yaml").write_text(f"# tune run {FULL} --config tiny/full\nseed: 1\n")
    monkeypatch.setattr(registry, "configs_folder", lambda: folder)
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's folder with a recipe, components and a config of their own."""
    folder = tmp_path / "project"
    folder.mkdir()
    parts = Path(__file__).parent / "config" / "config_parts.py"
    (folder / "my_parts.py").write_text(parts.read_text())
    (folder / "my_recipe.py").write_text(RECIPE)
    component = {
        name: {"_component_": f"my_parts.{target}", **kwargs}
        for name, target, kwargs in (
            ("model", "tiny_model", {}),
            ("tokenizer", "Tokenizer", {"path": "t"}),
            ("checkpointer", "Checkpointer", {"checkpoint_dir": "c"}),
            ("dataset", "dataset", {"path": "p"}),
            ("prompt", "Prompt", {}),
            ("engine", "Engine", {}),
            ("advantage", "Advantage", {}),
            ("loss", "loss", {}),
        )
    }
    tree = {
        **component,
        "optimizer": {"_component_": "torch.optim.SGD", "lr": 0.1},
        "rewards": [{"_component_": "my_parts.Exact", "success": True}],
        **{"output_dir": "out", "max_prompt_tokens": 8, "batch_size": 2, "grpo_samples": 2},
        **{"forward_batch_size": 2, "max_generated_tokens": 8, "num_steps": 1},
    }
    (folder / "my.yaml").write_text(f"# tune run {FULL} --config my.yaml\n{yaml.safe_dump(tree)}")
    return folder


def test_ls_lists_recipes_with_their_configs(
    packaged: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    grpo(monkeypatch, "ls")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["RECIPE", "CONFIG"]
    assert [FULL, "tiny/full"] in lines
    assert ["grpo_lora_finetune_single_device", "<>"] in lines


def test_cp_copies_configs_and_recipes(
    packaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / f"{FULL}.py").write_text("print('recipe')\n")
    grpo(monkeypatch, "cp", "tiny/full", str(tmp_path / "new" / "mine"), "--make-parents")
    assert (tmp_path / "new" / "mine.yaml").read_text().endswith("seed: 1\n")
    grpo(monkeypatch, "cp", FULL, str(tmp_path / "new"))
    assert (tmp_path / "new" / f"{FULL}.py").is_file()
    (tmp_path / "new" / "mine.yaml").write_text("kept")
    capsys.readouterr()
    grpo(monkeypatch, "cp", "tiny/full", str(tmp_path / "new" / "mine.yaml"), "-n")
    assert "not overwriting" in capsys.readouterr().out
    assert (tmp_path / "new" / "mine.yaml").read_text() == "kept"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["cp", "tiny/ful", "."], "error: tiny/ful: no such recipe or config (did you mean 'tiny/full'?)"),
        (["cp", "tiny/full", "absent/x.yaml"], "error: absent: no such folder; --make-parents creates it\n"),
        (["validate", "tiny/ful"], "error: --config: no file and no packaged config named 'tiny/ful'"),
        (["validate", "tiny/full", "--recipe", "grpo_ful"], "error: --recipe: no recipe named 'grpo_ful'"),
        (["validate", "tiny/full"], "error: output_dir: required key is missing"),
        (["download", "smollm2"], "error: --output-dir: needed for smollm2"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    argv: list[str],
    message: str,
    packaged: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        grpo(monkeypatch, *argv)
    error = capsys.readouterr().err
    assert caught.value.code == 2
    assert error.startswith(message) and error.count("\n") == 1


def test_validate_checks_with_overrides(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "path", list(sys.path))
    grpo(monkeypatch, "validate", "my.yaml")
    grpo(monkeypatch, "validate", "my.yaml", "seed=3", "--recipe", FULL, "~num_steps", "epochs=1")
    assert capsys.readouterr().out == "Config is well-formed!\n" * 2
    with pytest.raises(SystemExit):
        grpo(monkeypatch, "validate", "my.yaml", "loss.kl_coef=1")
    assert capsys.readouterr().err == (
        "error: loss.kl_coef: unknown argument of my_parts.loss (did you mean 'kl_coeff'?)\n"
    )


def test_download_knows_smollm2_and_hands_on_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from grpo.models import download

    asked: list[object] = []
    monkeypatch.setattr(download, "download_smollm2", lambda output_dir: f"from the hub to {output_dir.name}")
    monkeypatch.setattr(
        Download, "_download_cmd", lambda self, args: asked.append((args.repo_id, args.source))
    )
    grpo(monkeypatch, "download", "smollm2", "--output-dir", str(tmp_path / "here"))
    assert capsys.readouterr().out == "from the hub to here\n"
    grpo(monkeypatch, "download", "Qwen/Qwen2.5-0.5B-Instruct", "--source", "kaggle")
    assert asked == [("Qwen/Qwen2.5-0.5B-Instruct", "kaggle")]


@pytest.mark.parametrize("command", ["tune", "grpo"])
def test_run_runs_a_recipe_with_overrides(
    command: str, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "path", list(sys.path))
    main = tune.main if command == "tune" else cli.main
    run = [command, "run", "my_recipe", "--config", "my.yaml"]
    monkeypatch.setattr(sys, "argv", [*run, "batch_size=3"])
    before = dict(os.environ)
    main()
    assert dict(os.environ) == before
    assert "batch_size is 3, loss is my_parts.loss" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", [*run, "sead=1"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    assert capsys.readouterr().err == "error: sead: unknown key (did you mean 'seed'?)\n"


def test_help_names_our_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("run", "download"):
        with pytest.raises(SystemExit):
            grpo(monkeypatch, command, "--help")
        text = capsys.readouterr().out
        assert f"usage: grpo {command}" in text and "usage: tune" not in text
    grpo(monkeypatch)
    assert "{download,ls,cp,run,validate}" in capsys.readouterr().out
