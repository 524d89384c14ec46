"""Every config that travels with the package: right as it is, and a bogus key in any mapping is found."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tree_paths import dotted, mappings, with_key

from grpo.config.errors import ConfigError
from grpo.config.load import load_tree
from grpo.config.options import build
from grpo.config.registry import RECIPES, packaged_configs, recipe_of

CONFIGS = packaged_configs()

# What the check of a checkpoint folder looks at, by the family of configs (from the models' config.json).
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "qwen2_5": {"model_type": "qwen2", "max_position_embeddings": 32768},
    "llama3_2": {"model_type": "llama", "max_position_embeddings": 131072},
    "llama3_1": {"model_type": "llama", "max_position_embeddings": 131072},
    "smollm2": {"model_type": "llama", "max_position_embeddings": 8192},
}


def write_checkpoint_folder(folder: Path, architecture: dict[str, Any]) -> None:
    """A folder that looks like a downloaded model, with one tiny tensor as its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    shape = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    config = {**shape, "vocab_size": 8, "intermediate_size": 8, "rms_norm_eps": 1e-5, **architecture}
    (folder / "config.json").write_text(json.dumps(config))
    save_file({"model.norm.weight": torch.ones(1)}, folder / "model.safetensors")
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": {"model.norm.weight": "model.safetensors"}})
    )
    token = {"id": 0, "content": "<|end|>", "special": True, "normalized": False}
    added = {**token, "single_word": False, "lstrip": False, "rstrip": False}
    words = {"type": "WordLevel", "vocab": {"<|end|>": 0, "a": 1}, "unk_token": "<|end|>"}
    (folder / "tokenizer.json").write_text(
        json.dumps({"version": "1.0", "added_tokens": [added], "model": words})
    )
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|end|>", "pad_token": "<|end|>", "chat_template": template})
    )


@pytest.fixture
def downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A current folder in which every config's checkpoint folder lies."""
    for name, file in CONFIGS.items():
        family = name.partition("/")[0]
        folder = load_tree(file)["checkpointer"]["checkpoint_dir"]
        if family in ARCHITECTURES:
            assert not Path(folder).is_absolute()
            write_checkpoint_folder(tmp_path / folder, ARCHITECTURES[family])
    monkeypatch.chdir(tmp_path)


def test_every_recipe_has_a_config() -> None:
    assert {recipe_of(file).name for file in CONFIGS.values()} == set(RECIPES)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_shipped_config_is_right(name: str, downloaded: None) -> None:
    build(recipe_of(CONFIGS[name]).schema, load_tree(CONFIGS[name]))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_bogus_key_in_any_mapping_is_named(name: str, downloaded: None) -> None:
    schema, tree = recipe_of(CONFIGS[name]).schema, load_tree(CONFIGS[name])
    paths = list(mappings(tree))
    assert len(paths) > 10
    for path in paths:
        with pytest.raises(ConfigError) as caught:
            build(schema, with_key(tree, path, "bogus_key"))
        message = str(caught.value)
        assert message.startswith(dotted(path)) and "bogus_key" in message
        assert "\n" not in message


@pytest.mark.parametrize("name", CONFIGS)
def test_the_header_tells_what_it_is_and_how_to_run_it(name: str) -> None:
    header = CONFIGS[name].read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    assert len(header) <= 15 and all(line.startswith("#") for line in header)
    recipe = recipe_of(CONFIGS[name]).name
    launcher = r"--nproc_per_node \d+ " if "distributed" in recipe else ""
    assert re.search(rf"tune run {launcher}{recipe} --config {name}$", "\n".join(header), re.MULTILINE)
    assert ("lora" in name) == ("lora" in recipe_of(CONFIGS[name]).name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("prompt_budget", "max_position_embeddings of models/Qwen2.5-0.5B-Instruct/config.json"),
        ("no_weights", "checkpointer.checkpoint_dir: "),
        ("no_folder", "checkpointer.checkpoint_dir: "),
    ],
)
def test_a_checkpoint_folder_is_looked_at(change: str, message: str, downloaded: None) -> None:
    file = CONFIGS["qwen2_5/0_5B_grpo_full_single_device"]
    tree = load_tree(file)
    folder = Path(tree["checkpointer"]["checkpoint_dir"])
    if change == "prompt_budget":
        tree["max_prompt_tokens"] = 32768
    elif change == "no_weights":
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").unlink()
    else:
        tree["checkpointer"]["checkpoint_dir"] = "models/absent"
    with pytest.raises(ConfigError) as caught:
        build(recipe_of(file).schema, tree)
    assert message in str(caught.value)
