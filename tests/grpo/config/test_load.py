from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo.config.errors import ConfigError
from grpo.config.load import apply_override, load_tree, read_yaml, resolve, to_yaml


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", "{path}, line 2, column 1: not valid YAML: found duplicate key a"),
        ("m:\n  b: 1\n  b: 2\n", "{path}, line 3, column 3: not valid YAML: found duplicate key b"),
        ("a: [1\nb: 2", "{path}, line 2, column 2: not valid YAML: did not find expected ',' or ']'"),
        (
            "a: b: c\n",
            "{path}, line 1, column 5: not valid YAML: mapping values are not allowed in this context",
        ),
        ("- 1\n- 2\n", "{path}: expected a mapping of keys to values, got a list"),
        ("on: 1\n", "expected keys that are names, got True; quote it if it is one"),
        ("model: {1: 2}\n", "model: expected keys that are names, got 1; quote it if it is one"),
        ("42\n", "{path}: cannot be read as a config (Invalid loaded object type: int)"),
        ("a: 1\n---\nb: 2\n", "{path}, line 2, column 1: not valid YAML: but found another document"),
    ],
)
def test_a_broken_file_is_one_line_with_its_place(
    text: str, message: str, write_config: Callable[..., Path]
) -> None:
    path = write_config(text)
    with pytest.raises(ConfigError) as caught:
        read_yaml(path)
    assert str(caught.value) == message.format(path=path)


def test_a_file_of_bytes_is_no_config(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"\xff\xfe\x00\x81" * 10)
    with pytest.raises(ConfigError, match="model.safetensors"):
        read_yaml(path)


def test_a_folder_is_no_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read as a config \(Is a directory\)"):
        read_yaml(tmp_path)


def test_values_keep_their_types(write_config: Callable[..., Path]) -> None:
    path = write_config("lr: 1e-5\nn: 3\nf: 1.0\nflag: true\nnone: null\ntext: '1e-5'\nbig: 1_000\n")
    tree = load_tree(path)
    assert tree == {"lr": 1e-5, "n": 3, "f": 1.0, "flag": True, "none": None, "text": "1e-5", "big": 1000}
    assert isinstance(tree["lr"], float) and isinstance(tree["text"], str)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("a=2", {"a": 2}),
        ("a=", {"a": None}),
        ("a=x=y", {"a": "x=y"}),
        ("a=[1, 2]", {"a": [1, 2]}),
        ("a=1e-4", {"a": 1e-4}),
        ("new.deep.key=1", {"new": {"deep": {"key": 1}}}),
        ("empty.key=1", {"empty": {"key": 1}}),
        ("part.size=3", {"part": {"_component_": "x.Y", "size": 3}}),
        ("part=z.W", {"part": {"_component_": "z.W", "size": 1}}),
        ("part=null", {"part": None}),
        ("part={_component_: z.W}", {"part": {"_component_": "z.W"}}),
        ("part=${other}", {"part": "${other}"}),
        ("items.1.weight=2", {"items": [{"weight": 1}, {"weight": 2}]}),
        ("items.0=7", {"items": [7, {"weight": 1}]}),
        ("~items.0", {"items": [{"weight": 1}]}),
        ("~part.size", {"part": {"_component_": "x.Y"}}),
    ],
)
def test_override(override: str, expected: dict[str, Any]) -> None:
    before = {
        "a": 1,
        "empty": None,
        "part": {"_component_": "x.Y", "size": 1},
        "items": [{"weight": 1}, {"weight": 1}],
    }
    tree = {key: value for key, value in before.items()}
    apply_override(tree, override)
    assert tree == {**before, **expected}


def test_removal_of_a_key(write_config: Callable[..., Path]) -> None:
    assert load_tree(write_config("a: 1\nb: 2\n"), ["~a"]) == {"b": 2}


def test_overrides_act_before_interpolation(write_config: Callable[..., Path]) -> None:
    path = write_config("output_dir: a\nlogger: {log_dir: '${output_dir}/logs'}\n")
    assert load_tree(path, ["output_dir=b"])["logger"] == {"log_dir": "b/logs"}


def test_unresolved_interpolation_in_a_list_names_the_item() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve({"rewards": [{"name": "${nam}"}]})
    assert str(caught.value) == "rewards.0.name: cannot be resolved: Interpolation key 'nam' not found"


def test_yaml_text_reads_back_as_the_same_tree(tmp_path: Path) -> None:
    tree = {
        "lr": 1e-5,
        "text": "1e-5",
        "quoted": "yes: no # maybe",
        "template": "a ${b} and \\${c} and \\\\n",
        "lines": "one\ntwo\n",
        "list": [{"x": None}, True, "${d"],
    }
    path = tmp_path / "again.yaml"
    path.write_text(to_yaml(tree))
    assert load_tree(path) == tree
