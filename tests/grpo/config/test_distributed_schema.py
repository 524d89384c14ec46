"""Keys of the distributed recipes: what they refuse before any process is started."""

from __future__ import annotations

import pytest

from grpo.config import ConfigError, DistributedConfig, TrainConfig, load_config

CONFIG = "tiny/full_distributed"
MISTAKES = [
    ("device=cuda:1", "device: expected 'cpu' or 'cuda', got 'cuda:1' (a string)"),
    ("device=mps", "device: expected 'cpu' or 'cuda', got 'mps' (a string)"),
    ("batch_size=0", "batch_size: must be at least 1, got 0"),
    ("data_parallel_shard=0", "data_parallel_shard: must be -1 or at least 1, got 0"),
    ("data_parallel_shard=-2", "data_parallel_shard: must be at least -1, got -2"),
    ("data_parallel_replicate=0", "data_parallel_replicate: must be at least 1, got 0"),
    (
        "data_parallel_replicat=2",
        "data_parallel_replicat: unknown key (did you mean 'data_parallel_replicate'?)",
    ),
    (
        "fsdp_cpu_offload=true",
        "fsdp_cpu_offload: needs device cuda, got cpu, where all is in host memory",
    ),
    (
        "custom_sharded_layers=[tok_embedings]",
        "custom_sharded_layers.0: expected 'tok_embeddings' or 'output', got 'tok_embedings' (a string)",
    ),
    (
        "custom_sharded_layers=[output,layers]",
        "custom_sharded_layers.1: expected 'tok_embeddings' or 'output', got 'layers' (a string)",
    ),
    (
        "custom_sharded_layers=output",
        "custom_sharded_layers: expected a list of strings or null, got 'output' (a string)",
    ),
    (
        "gather_weights=alway",
        "gather_weights: expected 'auto' or 'always' or 'never', got 'alway' (a string) "
        "(did you mean 'always'?)",
    ),
    (
        "engine={_component_: grpo.generation.NativeEngine, weights: null}",
        "engine.weights: the recipe itself passes this argument to grpo.generation.NativeEngine; remove it",
    ),
    (
        "checkpointer.ranks=null",
        "checkpointer.ranks: the recipe itself passes this argument to grpo.checkpoint.StepCheckpointer; "
        "remove it",
    ),
]


@pytest.mark.parametrize(("override", "message"), MISTAKES, ids=[override for override, _ in MISTAKES])
def test_a_mistake_is_one_line_that_names_it(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(CONFIG, [override], DistributedConfig)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "overrides",
    [
        ["device=cuda", "fsdp_cpu_offload=true"],
        ["custom_sharded_layers=[tok_embeddings, output]", "data_parallel_shard=2"],
        ["custom_sharded_layers=[]", "data_parallel_shard=-1", "data_parallel_replicate=3"],
    ],
)
def test_what_is_possible_is_accepted(overrides: list[str]) -> None:
    cfg = load_config(CONFIG, overrides, DistributedConfig)
    assert cfg.gather_weights == "auto"


def test_the_keys_of_ranks_are_unknown_on_one_device() -> None:
    with pytest.raises(ConfigError, match="^data_parallel_shard: unknown key"):
        load_config("tiny/full_single_device", ["data_parallel_shard=2"], TrainConfig)


def test_checks_over_several_keys_of_the_other_recipes_hold_here_too() -> None:
    with pytest.raises(ConfigError, match="^num_steps: set exactly one of num_steps and epochs"):
        load_config(CONFIG, ["epochs=1"], DistributedConfig)
