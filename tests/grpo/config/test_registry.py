from __future__ import annotations

from pathlib import Path

import pytest

from grpo.config import registry
from grpo.config.errors import ConfigError
from grpo.config.registry import RECIPES, configs_of, find_config, find_recipe, packaged_configs, recipe_of

FULL = "grpo_full_finetune_single_device"


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of two packaged configs."""
    folder = tmp_path / "packaged"
    for name, recipe in (
        ("tiny/full_single_device", FULL),
        ("big/0_5B_lora", "grpo_lora_finetune_single_device"),
    ):
        file = folder / f"{name}.yaml"
        file.parent.mkdir(parents=True)
        file.write_text(f"# What it is.\n#\n#   tune run {recipe} --config {name}\n\nseed: 1\n")
    monkeypatch.setattr(registry, "configs_folder", lambda: folder)
    return folder


def test_packaged_names(packaged: Path) -> None:
    assert list(packaged_configs()) == ["big/0_5B_lora", "tiny/full_single_device"]
    assert find_config("tiny/full_single_device") == packaged / "tiny" / "full_single_device.yaml"
    assert find_config("tiny/full_single_device.yaml") == packaged / "tiny" / "full_single_device.yaml"
    assert configs_of(RECIPES[FULL]) == ["tiny/full_single_device"]


def test_a_file_wins_over_a_packaged_name(
    packaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "full_single_device.yaml").write_text("seed: 2\n")
    assert find_config("tiny/full_single_device.yaml").read_text() == "seed: 2\n"


def test_an_unknown_name_is_told_with_the_nearest(packaged: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        find_config("tiny/ful_single_device")
    assert str(caught.value) == (
        "--config: no file and no packaged config named 'tiny/ful_single_device' "
        "(did you mean 'tiny/full_single_device'?)"
    )


@pytest.mark.parametrize(
    "command",
    [
        f"# tune run {FULL} --config x",
        f"#   tune run --nproc_per_node 2 {FULL} --config x batch_size=2",
        f"# What.\n#\n# $ grpo run {FULL} --config x",
    ],
)
def test_the_header_names_the_recipe(command: str, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(f"{command}\nseed: 1\n")
    assert recipe_of(file) is RECIPES[FULL]


@pytest.mark.parametrize(
    "text", ["seed: 1\n", f"seed: 1\n# tune run {FULL} --config x\n", "# tune run full_finetune --config x\n"]
)
def test_no_recipe_of_ours_in_the_header_is_told(text: str, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match="its header names no recipe of ours"):
        recipe_of(file)


def test_an_unknown_recipe_is_told_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=f"did you mean '{FULL}'"):
        find_recipe("grpo_full_finetun_single_device")
