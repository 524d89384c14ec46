"""The keys of the distributed recipes: those of the others, and how the model lies on the ranks."""

from __future__ import annotations

import dataclasses
from typing import Literal

from grpo.config.errors import ConfigError
from grpo.config.options import Component, option, slot
from grpo.config.schema import ENGINE_ARGUMENTS, TrainConfig


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DistributedConfig(TrainConfig):
    """Keys of the recipes that train on several ranks; one config serves any number of them."""

    device: str = option(
        "where to train; cuda: each rank takes the GPU of its local rank",
        default="cpu",
        pattern=r"cpu|cuda",
        pattern_help="'cpu' or 'cuda'",
    )
    checkpointer: Component = slot(
        "reads the initial weights, writes step checkpoints", supplied=("output_dir", "ranks")
    )
    batch_size: int = option("prompts of one batch, over all ranks together", at_least=1)
    engine: Component = slot(
        "what samples completions",
        default={"_component_": "grpo.generation.NativeEngine"},
        supplied=(*ENGINE_ARGUMENTS, "device", "weights"),
    )
    gather_weights: Literal["auto", "always", "never"] = option(
        "gather all weights on every rank while it samples; never: a layer at a time for every token, slow; "
        "auto: always, where the weights fit into half of the free memory",
        default="auto",
    )

    data_parallel_shard: int = option(
        "ranks that share one copy of the model (-1: all, divided by data_parallel_replicate)",
        default=-1,
        at_least=-1,
    )
    data_parallel_replicate: int = option(
        "copies of the model, such as one on each machine", default=1, at_least=1
    )
    fsdp_reshard_after_forward: bool = option(
        "let go of a layer's gathered weights between forward and backward pass: less memory, more traffic",
        default=True,
    )
    fsdp_cpu_offload: bool = option(
        "keep weights, gradients and optimizer in host memory: much less GPU memory, slower", default=False
    )
    custom_sharded_layers: list[str] | None = option(
        "parts besides the layers that are gathered on their own: tok_embeddings, output (null: none)",
        default=None,
        pattern=r"tok_embeddings|output",
        pattern_help="'tok_embeddings' or 'output'",
    )

    def cross_check(self) -> None:
        """Checks over several keys.

        Raises:
            ConfigError: naming the keys, what was expected, and the values.
        """
        TrainConfig.cross_check(self)
        if self.fsdp_cpu_offload and self.device == "cpu":
            raise ConfigError("fsdp_cpu_offload: needs device cuda, got cpu, where all is in host memory")
        if self.data_parallel_shard == 0:
            raise ConfigError("data_parallel_shard: must be -1 or at least 1, got 0")
