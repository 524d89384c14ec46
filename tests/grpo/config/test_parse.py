from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo.config import ConfigError, TrainConfig, config_yaml, load_config, parse
from grpo.config.parse import split_arguments


@parse(TrainConfig)
def show_seed(cfg: TrainConfig) -> int:
    """A recipe that ends at once."""
    if cfg.seed == 99:
        raise ConfigError("dataset: 3 tasks,\nfewer than a batch")
    return cfg.seed


def run(monkeypatch: pytest.MonkeyPatch, *argv: str) -> Any:
    monkeypatch.setattr(sys, "argv", ["recipe", *argv])
    return show_seed()


def test_the_recipe_gets_the_checked_config(
    monkeypatch: pytest.MonkeyPatch, base_tree: dict[str, Any], write_config: Callable[..., Path]
) -> None:
    assert run(monkeypatch, "--config", str(write_config(base_tree)), "seed=5") == 5
    assert run(monkeypatch, "seed=6", f"--config={write_config(base_tree)}") == 6


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["sead=1"], "error: sead: unknown key (did you mean 'seed'?)\n"),
        (["seed=99"], "error: dataset: 3 tasks, fewer than a batch\n"),
        (["--seed=1"], "error: --seed=1: unknown option; expected --config <file or packaged name>"),
        (["--config"], "error: --config: expected one config; usage: --config <file or packaged name>"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    argv: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    base_tree: dict[str, Any],
    write_config: Callable[..., Path],
) -> None:
    with pytest.raises(SystemExit) as caught:
        run(monkeypatch, "--config", str(write_config(base_tree)), *argv)
    captured = capsys.readouterr()
    assert caught.value.code == 2
    assert captured.err.startswith(message)
    assert captured.err.count("\n") == 1 and captured.out == ""


def test_no_config_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run(monkeypatch, "seed=1")
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("error: --config: expected one config")


def test_an_error_of_the_program_itself_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch, base_tree: dict[str, Any], write_config: Callable[..., Path]
) -> None:
    @parse(TrainConfig)
    def broken(cfg: TrainConfig) -> None:
        raise ValueError("a defect")

    monkeypatch.setattr(sys, "argv", ["recipe", "--config", str(write_config(base_tree))])
    with pytest.raises(ValueError, match="a defect"):
        broken()


def test_ctrl_c_is_one_line_and_status_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @parse(TrainConfig)
    def recipe_main(cfg: TrainConfig) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["recipe", "--config", "tiny/full_single_device"])
    with pytest.raises(SystemExit) as stopped:
        recipe_main()
    assert stopped.value.code == 130
    assert capsys.readouterr().err.splitlines() == [
        "stopped; resume_from_checkpoint=true goes on from the newest step_N"
    ]


def test_help_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        split_arguments(["--help"])
    assert caught.value.code == 0
    assert "--config" in capsys.readouterr().out


def test_the_resolved_config_reads_back_as_the_same(
    tmp_path: Path, base_tree: dict[str, Any], write_config: Callable[..., Path]
) -> None:
    base_tree["prompt"]["system"] = 'Price: \\${amount}, in quotes: "1e-5"'
    cfg = load_config(str(write_config(base_tree)), ["optimizer.lr=3e-6"], TrainConfig)
    assert cfg.prompt["system"] == 'Price: ${amount}, in quotes: "1e-5"'
    again = tmp_path / "again.yaml"
    again.write_text(config_yaml(cfg))
    assert load_config(str(again), [], TrainConfig) == cfg
    assert "temperature: 1.0" in again.read_text(), "defaults are written too"


def test_checking_builds_nothing(
    base_tree: dict[str, Any], write_config: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    import config_parts

    def forbidden(self: object, path: str) -> None:
        raise AssertionError("built while checking")

    monkeypatch.setattr(config_parts.Tokenizer, "__init__", forbidden)
    load_config(str(write_config(base_tree)), [], TrainConfig)
