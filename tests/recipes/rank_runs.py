"""Functions on several ranks: processes that are forked from a server that has imported everything."""

from __future__ import annotations

import multiprocessing
import os
import random
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_PRELOAD = [
    "torchtune.training",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "grpo.build",
    "grpo_full_finetune_distributed",
    "grpo_lora_finetune_distributed",
]


def on_ranks(size: int, folder: Path, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What ``function`` returns on each of ``size`` ranks, which find each other as under torchrun.

    Args:
        folder: for what the ranks return; made if need be.
        function: of an importable module; its result is loadable with ``torch.load``.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    processes = [
        context.Process(target=_run, args=(rank, size, port, folder, function, arguments))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(timeout=300)
        failed = [p.name for p in processes if p.exitcode != 0]
        errors = "\n".join(file.read_text() for file in sorted(folder.glob("error_*.txt")))
        assert not failed, f"{failed} did not end well\n{errors}"
    finally:
        for process in processes:
            process.kill()
    return [torch.load(folder / f"result_{rank}.pt", weights_only=False) for rank in range(size)]


def free_port() -> int:
    """A port that nothing listens on, outside the range that systems give out by themselves."""
    while True:
        port = random.SystemRandom().randrange(20000, 30000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port


def _run(
    rank: int, size: int, port: int, folder: Path, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    torch.set_num_threads(1)
    try:
        torch.save(function(*arguments), folder / f"result_{rank}.pt")
    except BaseException:
        (folder / f"error_{rank}.txt").write_text(f"rank {rank}:\n{traceback.format_exc()}")
        sys.exit(1)
