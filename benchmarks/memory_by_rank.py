"""Memory and time of each rank of a distributed run, at several numbers of ranks.

    python benchmarks/memory_by_rank.py --config smollm2/135M_grpo_full_distributed --measure loading
    python benchmarks/memory_by_rank.py --config smollm2/135M_grpo_full_distributed --measure training \\
        --ranks 2 -- num_steps=5

``loading``: what building and filling the model takes over what the process had before, at its highest,
beside what the rank has to hold: its share, and one layer. ``training``: the whole process during a run.
Host memory, so for runs on CPUs; Linux only, since it reads ``/proc``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Self

from grpo.build import build_part, build_policy, shard_policy
from grpo.config import DistributedConfig, find_config, load_config
from grpo.config.registry import recipe_of
from grpo.distributed import start_ranks
from grpo.policy import build_model, fill_model

GIB = 2**30
POLL = 0.001  # seconds between two looks


def resident_bytes() -> int:
    """What this process has in memory, pages of mapped files with it."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if found is None:
        raise OSError("/proc/self/status has no VmRSS; expected Linux")
    return int(found[1]) * 1024


class Peak:
    """The most that the process had in memory during a ``with``."""

    def __enter__(self) -> Self:
        self.before = self.most = resident_bytes()
        self.started = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()
        self.seconds = time.monotonic() - self.started

    def _watch(self) -> None:
        while not self._over.wait(POLL):
            self.most = max(self.most, resident_bytes())


def loading(config: str, overrides: list[str]) -> dict[str, float]:
    """Build, share and fill the model as the recipe does."""
    cfg = load_config(config, overrides, DistributedConfig)
    ranks = start_ranks(cfg.device)
    tokenizer = build_part(cfg, "tokenizer")
    with Peak() as peak:
        model = build_model(cfg.model, dtype=cfg.dtype)
        layers = [sum(p.numel() * p.element_size() for p in layer.parameters()) for layer in model.layers]
        policy = build_policy(cfg, model, tokenizer, ranks.device)
        shard_policy(cfg, policy, ranks)
        fill_model(model, cfg.checkpointer["checkpoint_dir"], device=ranks.device, seed=cfg.seed)
    shares = [parameter.to_local() for parameter in model.parameters()]
    ranks.wait_for_all()
    ranks.close()
    return {
        "before (GiB)": peak.before / GIB,
        "share (GiB)": sum(share.numel() * share.element_size() for share in shares) / GIB,
        "largest layer (GiB)": max(layers) / GIB,
        "taken at most (GiB)": (peak.most - peak.before) / GIB,
        "seconds": peak.seconds,
    }


def training(config: str, overrides: list[str]) -> dict[str, float]:
    """The whole run."""
    recipe = importlib.import_module(recipe_of(find_config(config)).name)
    sys.argv[1:] = ["--config", config, *overrides]
    processor = time.process_time()
    with Peak() as peak:
        recipe.recipe_main()
    return {
        "at most (GiB)": peak.most / GIB,
        "seconds": peak.seconds,
        "processor seconds": time.process_time() - processor,
    }


def by_rank(measure: str, ranks: int, config: str, overrides: list[str]) -> list[dict[str, float]]:
    """What each of so many ranks measured."""
    with tempfile.TemporaryDirectory() as folder:
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
        mine = [__file__, "--as_rank", folder, "--measure", measure, "--config", config]
        subprocess.run([*launch, *mine, "--", f"output_dir={folder}/run", *overrides], check=True)
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(ranks)]


MEASURES = {"loading": loading, "training": training}


def main() -> None:
    """Measure at each number of ranks and print a table; or, as one of the ranks, be measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True)
    parser.add_argument("--measure", choices=MEASURES, required=True)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--as_rank", help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*", help="key=value")
    args = parser.parse_intermixed_args()
    if args.as_rank:
        found = MEASURES[args.measure](args.config, args.overrides)
        Path(args.as_rank, f"{os.environ['RANK']}.json").write_text(json.dumps(found))
        return
    lines = []
    for ranks in args.ranks:
        for rank, row in enumerate(by_rank(args.measure, ranks, args.config, args.overrides)):
            if not lines:
                lines += ["| ranks | rank | " + " | ".join(row) + " |", "|---" * (len(row) + 2) + "|"]
            cells = " | ".join(f"{value:.3g}" for value in row.values())
            lines.append(f"| {ranks} | {rank} | {cells} |")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
