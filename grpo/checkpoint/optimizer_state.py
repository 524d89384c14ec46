"""An optimizer's tensors in files that any number of ranks can read (torch.distributed.checkpoint).

Each rank writes its own shares and reads what it needs of all files, so neither one rank nor one file
ever holds the whole.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.optim import Optimizer


def split_state(optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state's tensors by ``<number of the parameter>.<name>``, and all that is left of it."""
    state = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    values: dict[int, dict[str, Any]] = {}
    for number, entries in state["state"].items():
        values[number] = {name: value for name, value in entries.items() if not isinstance(value, Tensor)}
        tensors |= {f"{number}.{name}": t for name, t in entries.items() if isinstance(t, Tensor)}
    return tensors, {**state, "state": values}


def write_tensors(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Write every rank's shares; all ranks call this with the same names."""
    if tensors:
        with _quiet():
            dcp.save(tensors, storage_writer=dcp.FileSystemWriter(folder), no_dist=not dist.is_initialized())


def load_state(folder: Path, optimizer: Optimizer, rest: dict[str, Any]) -> None:
    """Restore what :func:`split_state` took apart, whatever number of ranks wrote it."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state = {number: dict(values) for number, values in rest["state"].items()}
    if folder.is_dir():
        reader = dcp.FileSystemReader(folder)
        tensors: dict[str, Tensor] = {}
        for key, stored in reader.read_metadata().state_dict_metadata.items():
            parameter = parameters[int(key.partition(".")[0])].detach()
            dtype = stored.properties.dtype
            if stored.size == parameter.shape:
                tensors[key] = torch.zeros_like(parameter, dtype=dtype)
            else:  # a number of its own, such as Adam's count of steps, which each rank has whole
                tensors[key] = torch.zeros(stored.size, dtype=dtype)
        with _quiet():
            dcp.load(tensors, storage_reader=reader, no_dist=not dist.is_initialized())
        for key, tensor in tensors.items():
            number, _, name = key.partition(".")
            state[int(number)][name] = tensor
    optimizer.load_state_dict({**rest, "state": state})


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the notice that no process group is there: on one device that is meant."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninit")
        yield
