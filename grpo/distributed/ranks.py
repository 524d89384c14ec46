"""The ranks of a run: shares of the work, and sums over all of it.

A rank is a process with a device of its own. What ranks tell each other here is small and goes
through the CPU (gloo); parameters and gradients go through the device's backend, by FSDP.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from grpo.config.errors import ConfigError
from grpo.types import PromptBatch, TrainBatch

T = TypeVar("T")

# The longest wait for the slowest rank, such as one that samples the longest completions.
TIMEOUT = timedelta(minutes=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """This process among the ranks; with ``size`` 1 nothing communicates.

    Every method must be called by all ranks, and in the same order.

    Attributes:
        rank, size: this rank's number, and how many there are.
        device: where this rank computes.
        neighbours: process ids of the other ranks on this machine.
        restarted: torchrun started these processes in place of some that failed
            (``--max_restarts``).
    """

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")
    neighbours: list[int] = field(default_factory=list)
    restarted: bool = False

    @property
    def is_main(self) -> bool:
        """Whether this is the rank that writes and speaks for all."""
        return self.rank == 0

    def share(self, prompts: PromptBatch) -> PromptBatch:
        """This rank's prompts: whole groups, consecutive, as many as any other's or one more."""
        share, rest = divmod(len(prompts), self.size)
        start = self.rank * share + min(self.rank, rest)
        rows = slice(start, start + share + (self.rank < rest))
        return PromptBatch(
            prompt_ids=prompts.prompt_ids[rows],
            tasks=prompts.tasks[rows],
            group_ids=prompts.group_ids[rows],
            prefills=prompts.prefills[rows],
        )

    def update_totals(self, batch: TrainBatch) -> TrainBatch:
        """The batch with normalisers over all ranks, so that each rank's loss is its part of one sum."""
        num_sequences, num_tokens = self.sums([batch.num_sequences, batch.num_tokens])
        return replace(batch, num_sequences=num_sequences, num_tokens=num_tokens)

    def sums(self, values: Sequence[float]) -> list[float]:
        """Each value summed over the ranks, in float64."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def maxima(self, values: Sequence[float]) -> list[float]:
        """The largest of each value."""
        return self._reduced(values, dist.ReduceOp.MAX)

    def sum(self, value: float) -> float:
        """One value summed over the ranks."""
        return self.sums([value])[0]

    def max(self, value: int) -> int:
        """The largest of one number."""
        return int(self.maxima([value])[0])

    def min(self, value: float) -> float:
        """The smallest of one value."""
        return self._reduced([value], dist.ReduceOp.MIN)[0]

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on some rank."""
        return bool(self.max(int(flag)))

    def gather(self, value: T) -> list[T]:
        """Every rank's value in the order of ranks, on rank 0; nothing elsewhere."""
        if self.size == 1:
            return [value]
        found: list[Any] | None = [None] * self.size if self.is_main else None
        dist.gather_object(value, found, dst=0)
        return found or []

    def from_main(self, value: T) -> T:
        """Rank 0's value, on every rank."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def wait_for_all(self) -> None:
        """Go on when every rank has come here."""
        self.sums([0.0])

    def close(self) -> None:
        """Leave the ranks; not called after an error, when others may wait in vain."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def _reduced(self, values: Sequence[float], op: dist.ReduceOp.RedOpType) -> list[float]:
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, op=op)
        return tensor.tolist()


SOLO = Ranks()


def start_ranks(device: str) -> Ranks:
    """Meet the other ranks that torchrun started; without torchrun, be the only one.

    Args:
        device: ``cpu``, or ``cuda``: each rank takes the GPU of its local rank.

    Raises:
        ConfigError: more ranks on this machine than it has GPUs.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    place = torch.device(device)
    if device == "cuda":
        if local_rank >= torch.cuda.device_count():
            raise ConfigError(
                f"--nproc_per_node: {local_world_size()} ranks on this machine, torch sees "
                f"{torch.cuda.device_count()} cuda devices; expected one for each"
            )
        place = torch.device("cuda", local_rank)
        torch.cuda.set_device(place)
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    if "RANK" in os.environ:
        store, rank, size = next(dist.rendezvous("env://", timeout=TIMEOUT))
        store = unused_part(store, rank, size)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    rank, size = dist.get_rank(), dist.get_world_size()
    # A launcher counts its own ranks' failures only, so those of several machines may disagree.
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    here = (socket.gethostname(), os.getpid(), restarts)
    everyone: list[Any] = [None] * size
    dist.all_gather_object(everyone, here)
    return Ranks(
        rank=rank,
        size=size,
        device=place,
        neighbours=[pid for host, pid, _ in everyone if host == here[0] and pid != here[1]],
        restarted=any(count > 0 for _, _, count in everyone),
    )


def unused_part(store: dist.Store, rank: int, size: int) -> dist.Store:
    """A part of the launcher's store in which no earlier start of these ranks has left anything.

    torchrun keeps its store when it starts the ranks again (torch 2.13 does), and a new rank that
    finds the address of an old one there fails. The restart count would name the part, but it may
    differ between machines. So rank 0 makes up a name, every other rank answers the name it reads
    with one of its own, and goes on once rank 0 has confirmed that: an old rank 0 never does.

    Raises:
        TimeoutError: the ranks did not find each other in ``TIMEOUT``.
    """
    mine = uuid.uuid4().hex
    deadline = time.monotonic() + TIMEOUT.total_seconds()

    def confirmed(part: str) -> bool:
        return store.check([f"members/{part}"]) and mine in store.get(f"members/{part}").decode().split()

    def answer(other: int) -> list[str]:
        return store.get(f"answer/{other}").decode().split()

    def wait() -> None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank {rank} of {size} waited for the others longer than {TIMEOUT}")
        time.sleep(0.02)

    part = mine
    if rank == 0:
        store.set("part", part)
        for other in range(1, size):
            while answer(other)[0] != part:
                wait()
        store.set(f"members/{part}", " ".join(answer(other)[1] for other in range(1, size)))
    else:
        while not confirmed(part):
            part = store.get("part").decode()
            store.set(f"answer/{rank}", f"{part} {mine}")
            wait()
    return dist.PrefixStore(part, store)


def local_world_size() -> int:
    """Ranks on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def rank_seed(seed: int, rank: int) -> int:
    """The seed of a rank's own stream; rank 0 has the config's.

    Hashed and not added, so that rank 1 of seed 0 is not rank 0 of seed 1; 32 bits, since torch's
    CPU generator looks at no more.
    """
    if rank == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"seed {seed}, rank {rank}".encode()).digest()[:4])
