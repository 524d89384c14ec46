"""A parameter as one rank sees it: its share, where the share lies in the whole, and the whole.

On one device a parameter is its own only share, and nothing here communicates.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


def share_of(parameter: Tensor) -> Tensor:
    """What this rank holds of a parameter, as a view that can be written to."""
    parameter = parameter.detach()
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def rows_of(parameter: Tensor) -> slice:
    """Which rows of the whole parameter this rank holds (shards are cut along the first dimension)."""
    if not isinstance(parameter, DTensor):
        return slice(0, parameter.shape[0])
    shape, offset = compute_local_shape_and_global_offset(
        parameter.shape, parameter.device_mesh, parameter.placements
    )
    start = min(offset[0], parameter.shape[0])  # a rank without rows starts behind the last one
    return slice(start, start + shape[0])


def whole_of(parameter: Tensor) -> Tensor:
    """The whole parameter, without gradient; all ranks must ask, and for the same one."""
    parameter = parameter.detach()
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter


@torch.no_grad()
def copy_share(parameter: Tensor, whole: Tensor) -> None:
    """Write this rank's rows of ``whole`` into ``parameter``, in the parameter's dtype."""
    share_of(parameter).copy_(whole[rows_of(parameter)])
