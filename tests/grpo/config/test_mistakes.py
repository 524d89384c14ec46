"""One line for each mistake: the table of what users get wrong, and what they are told."""

# ruff: noqa: E501 - messages stand here as they are printed

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tree_paths import dotted, mappings, with_key

from grpo.config import ConfigError, TrainConfig, load_config
from grpo.config.options import build

OVERRIDE_MISTAKES = [
    ("sead=1", "sead: unknown key (did you mean 'seed'?)"),
    ("grpo_sample=4", "grpo_sample: unknown key (did you mean 'grpo_samples'?)"),
    ("los.kl_coeff=0.1", "los: unknown key (did you mean 'loss'?)"),
    ("grpo_samples=1", "grpo_samples: must be at least 2, got 1"),
    ("grpo_samples=2.5", "grpo_samples: expected an integer, got 2.5"),
    ("grpo_samples=many", "grpo_samples: expected an integer, got 'many' (a string)"),
    ("grpo_samples=true", "grpo_samples: expected an integer, got True"),
    ("~grpo_samples", "grpo_samples: required key is missing (completions sampled for each prompt: its group)"),
    ("forward_batch_size=0", "forward_batch_size: must be at least 1, got 0"),
    ("temperature=-1", "temperature: must be more than 0, got -1"),
    ("temperature=0", "temperature: must be more than 0, got 0"),
    ("temperature=.inf", "temperature: must be finite, got inf"),
    ("temperature=null", "temperature: expected a number, got null"),
    ("top_p=1.5", "top_p: must be at most 1, got 1.5"),
    ("top_k=0", "top_k: must be at least 1, got 0"),
    ("stop_token_ids=[1,x]", "stop_token_ids.1: expected an integer, got 'x' (a string)"),
    ("stop_token_ids=[1,-1]", "stop_token_ids.1: must be at least 0, got -1"),
    ("clip_grad_norm=0", "clip_grad_norm: must be more than 0, got 0"),
    ("max_reward_error_fraction=2", "max_reward_error_fraction: must be at most 1, got 2"),
    ("dtype=bf32", "dtype: expected 'fp32' or 'bf16', got 'bf32' (a string) (did you mean 'fp32'?)"),
    ("device=gpu", "device: expected 'cpu', 'cuda', 'cuda:N' or 'mps', got 'gpu' (a string)"),
    ("compile=1", "compile: expected true or false, got 1"),
    ("epochs=1", "num_steps: set exactly one of num_steps and epochs, got 3 and 1"),
    ("~num_steps", "num_steps: set exactly one of num_steps and epochs, got neither"),
    ("eval_every_n_steps=5", "eval_every_n_steps: needs eval_dataset, which is not set"),
    (
        "max_prompt_tokens=97",
        "max_prompt_tokens: max_prompt_tokens (97) + max_generated_tokens (32) must be at most 128, "
        "the max_seq_len of the model",
    ),
    ("model=3", "model: expected a component (a mapping with _component_), got 3"),
    ("~model._component_", "model: expected a component (a mapping with _component_), got {'max_seq_len': 128}"),
    ("seed={_component_: x.y}", "seed: expected a plain value, got a component"),
    ("model._component_=7", "model._component_: expected a dotted name, got 7"),
    (
        "model=tiny",
        "model._component_: expected a dotted name such as package.module.name, got 'tiny'",
    ),
    (
        "model=config_parts.tiny_modle",
        "model._component_: config_parts has no 'tiny_modle' (did you mean 'tiny_model'?)",
    ),
    ("model=torchtun.models.x", "model._component_: no module named 'torchtun' (did you mean 'torchtune'?)"),
    (
        "optimizer=torch.optm.AdamW",
        "optimizer._component_: torch has no 'optm' (did you mean 'optim'?)",
    ),
    ("model=config_parts.NUMBER", "model._component_: config_parts.NUMBER is of type int, expected a class or function"),
    (
        "model.max_seq_length=64",
        "model.max_seq_length: unknown argument of config_parts.tiny_model (did you mean 'max_seq_len'?)",
    ),
    ("model.max_seq_len=big", "model.max_seq_len: expected an integer, got 'big' (a string)"),
    ("~dataset.path", "dataset.path: required argument of config_parts.dataset is missing"),
    ("dataset.split=trian", "dataset.split: expected 'train' or 'test', got 'trian' (a string) (did you mean 'train'?)"),
    ("dataset.path=absent", "dataset.path: no such file 'absent'"),
    ("dataset.split=test", "dataset: nothing left to train on"),
    ("dataset.options.levl=1", "dataset.options.levl: unknown (valid: level)"),
    ("dataset.options={level: x}", "dataset.options.level: expected an integer, got 'x' (a string)"),
    ("loss.epsilon=-0.1", "loss.epsilon must be more than 0, got -0.1"),
    ("optimizer.lrr=1", "optimizer.lrr: unknown argument of torch.optim.AdamW (did you mean 'lr'?)"),
    (
        "optimizer.params=[]",
        "optimizer.params: the recipe itself passes this argument to torch.optim.AdamW; remove it",
    ),
    ("engine.seed=1", "engine.seed: the recipe itself passes this argument to config_parts.Engine; remove it"),
    ("engine.greedy=3", "engine.greedy: expected true or false, got 3"),
    (
        "engine=config_parts.EngineWithoutSeed",
        "engine._component_: config_parts.EngineWithoutSeed does not take 'seed', which the recipe passes",
    ),
    ("advantage.scale=no", "advantage.scale: expected 'std' or 'none', got False"),
    ("advantage.pair=[1]", "advantage.pair: expected a list of 2 (an integer, a number), got [1]"),
    ("advantage.pair=[1,x]", "advantage.pair.1: expected a number, got 'x' (a string)"),
    ("rewards=[]", "rewards: expected a list of at least one component, got []"),
    ("rewards.0.success=false", "rewards: exactly one needs success: true, got none"),
    ("rewards.1.success=true", "rewards: exactly one needs success: true, got rewards 0, 1"),
    ("rewards.1.name=exact", "rewards.1.name: 'exact' is also the name of rewards.0; set another"),
    ("rewards.1.weight=heavy", "rewards.1.weight: expected a number, got 'heavy' (a string)"),
    ("rewards.0.wieght=2", "rewards.0.wieght: unknown argument of config_parts.Exact (did you mean 'weight'?)"),
    ("rewards.1.tags=[1]", "rewards.1.tags.0: expected a string, got 1"),
    (
        "rewards.1.inner={_component_: config_parts.Tokenizer}",
        "rewards.1.inner.path: required argument of config_parts.Tokenizer is missing",
    ),
    ("rewards.7.weight=1", "override 'rewards.7.weight=1': expected a list index from 0 to 1, got '7'"),
    ("seed.x=1", "override 'seed.x=1': seed is 0, which has no keys"),
    ("metric_logger={_component_: config_parts.Swallows, sise: 1}",
     "metric_logger.sise: unknown argument of config_parts.Swallows (did you mean 'size'?)"),
    ("metric_logger={_component_: config_parts.Open, typo: 1}", "metric_logger.typo: unknown"),
    ("seed", "override 'seed': expected key=value, some.key=value or ~key"),
    ("=1", "override '=1': expected key=value, some.key=value or ~key"),
    ("a..b=1", "override 'a..b=1': expected key=value, some.key=value or ~key"),
    ("~sead", "override '~sead': no key 'sead' to remove (did you mean 'seed'?)"),
    ("seed=[1", "override 'seed=[1': the value is not valid YAML: did not find expected ',' or ']'"),
    ("seed=${sead}", "seed: cannot be resolved: Interpolation key 'sead' not found"),
    ("seed=???", "seed: cannot be resolved: Missing mandatory value: seed"),
    ("seed=${oc.env:GRPO_ABSENT}", "seed: cannot be resolved: Environment variable 'GRPO_ABSENT' not found"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("override", "message"), OVERRIDE_MISTAKES, ids=[case[0] for case in OVERRIDE_MISTAKES]
)
def test_a_mistake_is_one_line_that_names_it(
    override: str, message: str, base_tree: dict[str, Any], write_config: Callable[..., Path]
) -> None:
    path = write_config({"seed": 0, **base_tree})
    with pytest.raises(ConfigError) as caught:
        load_config(str(path), [override], TrainConfig)
    assert str(caught.value) == message


def test_the_base_config_is_right(base_tree: dict[str, Any]) -> None:
    assert build(TrainConfig, base_tree).grpo_samples == 4


def test_a_bogus_key_is_found_in_every_mapping(base_tree: dict[str, Any]) -> None:
    base_tree["rewards"][1]["inner"] = {"_component_": "config_parts.Tokenizer", "path": "x"}
    base_tree["dataset"]["options"] = {"level": 1}
    paths = list(mappings(base_tree))
    assert len(paths) == 15
    build(TrainConfig, base_tree)
    for path in paths:
        with pytest.raises(ConfigError) as caught:
            build(TrainConfig, with_key(base_tree, path, "bogus_key"))
        assert str(caught.value).startswith(dotted(path, "bogus_key"))


def test_the_smaller_context_of_builder_and_checkpoint_counts(
    base_tree: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "ckpt"
    folder.mkdir()
    (folder / "config.json").write_text('{"max_position_embeddings": 95}')
    with pytest.raises(
        ConfigError, match=r"must be at most 95, the max_position_embeddings of .*config\.json"
    ):
        build(TrainConfig, base_tree)
    (folder / "config.json").write_text('{"max_position_embeddings": 96}')
    build(TrainConfig, base_tree)


def test_the_builders_default_context_counts(base_tree: dict[str, Any]) -> None:
    del base_tree["model"]["max_seq_len"]
    base_tree["max_prompt_tokens"] = 224
    build(TrainConfig, base_tree)
    base_tree["max_prompt_tokens"] = 225
    with pytest.raises(ConfigError, match="must be at most 256"):
        build(TrainConfig, base_tree)
