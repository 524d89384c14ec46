"""Parameters, gradients and optimizer state cut into shares, one for each rank (FSDP2)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from grpo.config.errors import ConfigError
from grpo.distributed.ranks import Ranks


def make_mesh(ranks: Ranks, data_parallel_shard: int = -1, data_parallel_replicate: int = 1) -> DeviceMesh:
    """Which ranks share a copy of the model and which hold copies of the same share.

    Args:
        ranks: all of them.
        data_parallel_shard: ranks that share one copy; -1: as many as there are for each copy.
        data_parallel_replicate: copies. Neighbouring ranks share one, so with as many copies as
            machines only gradients cross the network.

    Raises:
        ConfigError: the product is not the number of ranks.
    """
    shares = data_parallel_shard
    if shares == -1:
        shares = max(1, ranks.size // data_parallel_replicate)
    if shares * data_parallel_replicate != ranks.size:
        raise ConfigError(
            f"data_parallel_replicate: {data_parallel_replicate} copies of {shares} shares "
            f"(data_parallel_shard) are not {ranks.size} ranks"
        )
    if data_parallel_replicate == 1:
        return init_device_mesh(ranks.device.type, (shares,), mesh_dim_names=("data_parallel_shard",))
    return init_device_mesh(
        ranks.device.type,
        (data_parallel_replicate, shares),
        mesh_dim_names=("data_parallel_replicate", "data_parallel_shard"),
    )


def shard(
    root: nn.Module,
    layers: Sequence[nn.Module],
    mesh: DeviceMesh,
    *,
    others: Sequence[nn.Module] = (),
    dtype: torch.dtype | None = None,
    reshard_after_forward: bool = True,
    cpu_offload: bool = False,
) -> None:
    """Cut a model into shares, in place.

    Each of ``layers`` is gathered when it runs, and so are ``others``; what is left is one more
    unit, which stays gathered from the start of the forward pass to the end of the backward pass.
    Gradients are summed over ranks, not averaged: the loss divides by totals of all ranks already.

    Args:
        root: the module whose forward pass is run, its parameters on the meta device or real.
        layers: parts of it that are gathered one at a time.
        mesh: see :func:`make_mesh`.
        others: further parts that become units of their own, such as a large embedding.
        dtype: gathered and computed in this (None: as stored); gradients are summed in float32.
        reshard_after_forward: let a layer's other shares go between forward and backward pass.
        cpu_offload: keep the shares, and so the optimizer, in host memory.
    """
    mixed_precision = MixedPrecisionPolicy()
    if dtype is not None:
        mixed_precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    settings = dict(
        mesh=mesh,
        mp_policy=mixed_precision,
        offload_policy=CPUOffloadPolicy() if cpu_offload else OffloadPolicy(),
    )
    for layer in layers:
        fully_shard(layer, reshard_after_forward=reshard_after_forward, **settings)
    for other in others:
        fully_shard(other, reshard_after_forward=True, **settings)
    fully_shard(root, reshard_after_forward=False, **settings)
    for unit in units_of(root):
        unit.set_gradient_divide_factor(1.0)
        # gloo has no scaled sums, and a factor of 1 needs none
        unit.set_force_sum_reduction_for_comms(True)


def units_of(root: nn.Module) -> list[FSDPModule]:
    """The parts that are gathered as one, the root first; none where nothing is sharded."""
    return [module for module in root.modules() if isinstance(module, FSDPModule)]


def reshard(root: nn.Module) -> None:
    """Let go of all that was gathered.

    Needed behind a pass without a backward pass: what stays gathered would be used again after an
    update, and would be the old weights.
    """
    for unit in units_of(root):
        unit.reshard()
