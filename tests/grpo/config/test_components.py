# ruff: noqa: E501, UP007, UP045 - messages as they are printed, annotations as torch and torchtune spell them

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal, NewType, Optional, Union

import pytest
import torch

from grpo.config.components import check_component, import_target, instantiate, prefixed, split_extras
from grpo.config.errors import ConfigError
from grpo.config.typecheck import check_type, describe, resolved_hints

Count = NewType("Count", int)


def test_instantiate_builds_nested_components_in_lists_and_mappings() -> None:
    import config_parts

    tokenizer = {"_component_": "config_parts.Tokenizer", "path": "t"}
    node = {
        "_component_": "config_parts.Open",
        "items": [tokenizer, 1],
        "by_name": {"a": tokenizer, "b": [2]},
    }
    built = instantiate(node, supplied=3)
    assert isinstance(built.kwargs["items"][0], config_parts.Tokenizer)
    assert built.kwargs["items"][1] == 1
    assert built.kwargs["by_name"]["a"].path == "t"
    assert built.kwargs["by_name"]["b"] == [2]
    assert built.kwargs["supplied"] == 3
    assert node["items"] == [tokenizer, 1], "the node stays as it was"


def test_instantiate_of_nothing_is_none() -> None:
    assert instantiate(None) is None


def test_a_module_of_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "grpo_user_rewards.py").write_text(
        "class Mine:\n    def __init__(self, size=1): self.size = size\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    node = {"_component_": "grpo_user_rewards.Mine", "size": 2}
    check_component("rewards.0", node)
    assert instantiate(node).size == 2
    with pytest.raises(
        ConfigError, match=r"no module named 'grpo_user_reward' \(did you mean 'grpo_user_rewards'"
    ):
        import_target("grpo_user_reward.Mine")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "x = 1\nraise KeyError('gone')\n",
            "model._component_: importing grpo_user_broken failed: KeyError: 'gone' (grpo_user_broken.py, line 2)",
        ),
        (
            "import grpo_absent_package\n",
            "model._component_: grpo_user_broken needs the package 'grpo_absent_package', which is not installed",
        ),
    ],
)
def test_a_module_that_fails_on_import_is_one_line(
    source: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "grpo_user_broken.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(ConfigError) as caught:
        check_component("model", {"_component_": "grpo_user_broken.Thing"})
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "node",
    [
        {
            "_component_": "torchtune.models.llama3_2.lora_llama3_2_1b",
            "lora_attn_modules": ["q_proj", "v_proj"],
            "lora_rank": 8,
            "lora_alpha": 16,
        },
        {"_component_": "torchtune.models.llama3_2.qlora_llama3_2_1b", "lora_attn_modules": ["q_proj"]},
        {"_component_": "torchtune.models.qwen2_5.qwen2_5_0_5b"},
        {"_component_": "torchtune.training.metric_logging.StdoutLogger"},
        {"_component_": "config_parts.qlora_model", "lora_attn_modules": ["q_proj"]},
        {"_component_": "config_parts.Prompt", "system": None},
    ],
)
def test_right_components_pass(node: dict[str, Any]) -> None:
    check_component("part", node)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (
            {"_component_": "torchtune.models.llama3_2.lora_llama3_2_1b", "lora_attn_modules": ["q_prj"]},
            "part.lora_attn_modules.0: expected 'q_proj' or 'k_proj' or 'v_proj' or 'output_proj', "
            "got 'q_prj' (a string) (did you mean 'q_proj'?)",
        ),
        (
            {
                "_component_": "torchtune.models.llama3_2.lora_llama3_2_1b",
                "lora_attn_modules": [],
                "lora_rnk": 1,
            },
            "part.lora_rnk: unknown argument of torchtune.models.llama3_2.lora_llama3_2_1b "
            "(did you mean 'lora_rank'?)",
        ),
        (
            {"_component_": "torchtune.models.qwen2_5.qwen2_5_05b"},
            "part._component_: torchtune.models.qwen2_5 has no 'qwen2_5_05b' (did you mean 'qwen2_5_0_5b'?)",
        ),
        (
            {"_component_": "config_parts.qlora_model"},
            "part.lora_attn_modules: required argument of config_parts.qlora_model is missing",
        ),
        (
            {"_component_": "config_parts.Prompt", "system": 3},
            "part.system: expected a string or null, got 3",
        ),
    ],
)
def test_wrong_components_are_told(node: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_component("part", node)
    assert str(caught.value) == message


def test_torch_optimizers_are_checked_against_their_signature() -> None:
    node = {
        "_component_": "torch.optim.AdamW",
        "lr": 1,
        "betas": [0.9, 0.95],
        "fused": None,
        "weight_decay": 0,
    }
    check_component("optimizer", node, supplied=("params",))
    parameter = torch.nn.Parameter(torch.zeros(1))
    assert instantiate(node, params=[parameter]).defaults["weight_decay"] == 0
    with pytest.raises(ConfigError, match=r"optimizer\.betas: expected a list of 2"):
        check_component("optimizer", {**node, "betas": [0.9]}, supplied=("params",))
    with pytest.raises(ConfigError, match=r"optimizer\.fused: expected true or false or null, got 'yes'"):
        check_component("optimizer", {**node, "fused": "yes"}, supplied=("params",))


def test_extras_are_parted_from_the_component() -> None:
    node = {"_component_": "x.Y", "weight": 2, "tags": ["a"]}
    assert split_extras(node, ("weight", "name")) == ({"_component_": "x.Y", "tags": ["a"]}, {"weight": 2})


def test_a_hint_for_type_checkers_only_leaves_the_others_in_force() -> None:
    import config_parts

    hints = resolved_hints(config_parts.Engine)
    assert hints["tokenizer"] is Any
    assert hints["greedy"] is bool


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("path: no such file", "data.path: no such file"),
        ("path must exist", "data.path must exist"),
        ("path.0: bad", "data.path.0: bad"),
        ("no such path", "data: no such path"),
        ("paths: bad", "data: paths: bad"),
    ],
)
def test_a_components_own_message_gets_its_place(message: str, expected: str) -> None:
    assert prefixed("data", message, {"path"}) == expected


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (1, int),
        (1, float),
        (1.5, float),
        (True, bool),
        ("x", str),
        ("x", Path),
        (None, None),
        (None, Optional[int]),
        (3, Union[int, str]),
        ("a", Literal["a", "b"]),
        ([1, 2], list[int]),
        ([], list[int]),
        ([1, 2.5], tuple[float, float]),
        ([1, 2, 3], tuple[int, ...]),
        ({"a": 1}, dict[str, int]),
        (3, Count),
        ("anything", Any),
        ({"_component_": "x.Y"}, torch.nn.Module),
        (0.5, Union[float, torch.Tensor]),
    ],
)
def test_a_fitting_value_passes(value: Any, hint: Any) -> None:
    check_type("key", value, hint)


@pytest.mark.parametrize(
    ("value", "hint", "message"),
    [
        (True, int, "key: expected an integer, got True"),
        (1, bool, "key: expected true or false, got 1"),
        (1.5, int, "key: expected an integer, got 1.5"),
        ("1", float, "key: expected a number, got '1' (a string)"),
        (1, str, "key: expected a string, got 1"),
        (None, int, "key: expected an integer, got null"),
        (1, None, "key: expected null, got 1"),
        ("c", Literal["a", 1], "key: expected 'a' or 1, got 'c' (a string)"),
        (True, Literal[1], "key: expected 1, got True"),
        (1, list[int], "key: expected a list of integers, got 1"),
        ("ab", list[str], "key: expected a list of strings, got 'ab' (a string)"),
        ([1, None], list[int], "key.1: expected an integer, got null"),
        ([[1], ["x"]], list[list[int]], "key.1.0: expected an integer, got 'x' (a string)"),
        ([1], tuple[int, int], "key: expected a list of 2 (an integer, an integer), got [1]"),
        ({"a": "b"}, dict[str, int], "key.a: expected an integer, got 'b' (a string)"),
        ([1], dict[str, int], "key: expected a mapping to an integer, got [1]"),
        ("bf16", torch.dtype, "key: expected a component (_component_: ...) that makes a dtype, got 'bf16' (a string)"),
    ],
)  # fmt: skip
def test_a_misfit_is_told(value: Any, hint: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_type("key", value, hint)
    assert str(caught.value) == message


def test_describe_tells_a_choice_once() -> None:
    assert describe(int | str | None) == "an integer or a string or null"
