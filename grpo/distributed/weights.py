"""How a sampler gets at sharded weights: all at once, or a layer at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Literal, Protocol

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from tqdm import tqdm

from grpo.distributed.ranks import Ranks, local_world_size
from grpo.distributed.shard import reshard, units_of

GatherWeights = Literal["auto", "always", "never"]


class WeightAccess(Protocol):
    """What a sampler does around its passes through a model."""

    def sampling(self) -> AbstractContextManager[None]:
        """Around all passes of a batch of prompts, which may be none on this rank."""
        ...

    def start_pass(self) -> None:
        """Before each pass."""
        ...

    def layer(self, layer: nn.Module) -> AbstractContextManager[None]:
        """Around a layer's part of a pass."""
        ...


class WholeWeights:
    """A model that is here as a whole."""

    def sampling(self) -> AbstractContextManager[None]:
        return nullcontext()

    def start_pass(self) -> None:
        pass

    def layer(self, layer: nn.Module) -> AbstractContextManager[None]:
        return nullcontext()


WHOLE = WholeWeights()


class ShardedWeights:
    """A model whose shares lie on several ranks.

    Gathering all weights before sampling costs one pass's worth of communication, and memory for
    the whole model. Without it, every pass (of a prompt, or of one more token) gathers each layer
    anew, and all ranks must make as many passes as the one that samples longest: those that have
    ended only take part in the gathering.

    Args:
        root, layers, dtype: as they were given to :func:`grpo.distributed.shard`.
        ranks: all of them.
        gather_weights: ``always``, ``never``, or ``auto``: when the whole model fits into half of
            the free memory of every rank. What ``auto`` chose is said once.
    """

    def __init__(
        self,
        root: FSDPModule,
        layers: nn.ModuleList,
        ranks: Ranks,
        dtype: torch.dtype | None = None,
        gather_weights: GatherWeights = "auto",
    ) -> None:
        self._root = root
        self._layers = list(layers)
        self._ranks = ranks
        self._dtype = dtype
        self._mode = gather_weights
        self.passes_joined = 0

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Weights are there inside; an error leaves them as they are, since it ends the run."""
        # Which unit is the root is found out by the first pass; a sampler makes none through it.
        self._root._get_fsdp_state()._lazy_init()
        if self._mode == "auto":
            self._mode = self._choose()
        others = [unit for unit in units_of(self._root) if unit not in self._layers]
        for unit in others:
            unit.set_reshard_after_forward(False)
        for unit in units_of(self._root) if self._mode == "always" else others:
            unit.unshard()
        yield
        if self._mode == "never":
            self._join_the_others()
        reshard(self._root)
        for unit in others[1:]:  # the root, which is first, stays gathered in training
            unit.set_reshard_after_forward(True)

    def start_pass(self) -> None:
        if self._mode == "never":
            self._ranks.any(True)

    def layer(self, layer: nn.Module) -> AbstractContextManager[None]:
        return self._gathered(layer) if self._mode == "never" else nullcontext()

    def _join_the_others(self) -> None:
        """Gather with the ranks that still make passes, until none does."""
        while self._ranks.any(False):
            self.passes_joined += 1
            for layer in self._layers:
                with self._gathered(layer):
                    pass

    @contextmanager
    def _gathered(self, layer: FSDPModule) -> Iterator[None]:
        layer.unshard()
        yield
        layer.reshard()

    def _choose(self) -> Literal["always", "never"]:
        needed = sum(p.numel() * (self._dtype or p.dtype).itemsize for p in self._root.parameters())
        free = self._ranks.min(free_memory(self._ranks.device))
        choice = "always" if needed <= free / 2 else "never"
        if self._ranks.is_main:
            tqdm.write(
                f"gather_weights=auto chose {choice}: the weights need {needed / 2**30:.2f} GiB on each "
                f"rank, {free / 2**30:.2f} GiB are free, and half of that may be used"
            )
        return choice


def free_memory(device: torch.device) -> float:
    """Bytes that this rank may still use: of its GPU, or its part of the host's memory."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return _host_memory() / local_world_size()


def _host_memory() -> float:
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    # elsewhere nothing tells what is free: half of what is there
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2
