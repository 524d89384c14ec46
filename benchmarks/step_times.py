"""What a step costs: time per stage, tokens per second and memory of a config, variant by variant.

    python benchmarks/step_times.py --config tiny/full_single_device dtype=fp32 dtype=bf16
    python benchmarks/step_times.py --config smollm2/135M_grpo_lora_single_device --each device=cuda -- \\
        dtype=fp32 dtype=bf16 dtype=bf16,compile=true
    bash benchmarks/one_gpu_distributed.sh models/SmolLM2-135M-Instruct out.json

Runs the recipe as a user would, once per variant, in turns, so that a machine that slows down slows all
of them; prints medians over steps with their range, the first steps left out (allocation, compilation).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from grpo.config import find_config
from grpo.config.registry import recipe_of

COLUMNS = ("time/generate", "time/update", "time/total", "tokens_per_second", "peak_memory_gib")


def run(config: str, overrides: list[str], steps: int, ranks: int | None) -> list[dict[str, float]]:
    """The metrics of each step of one run."""
    recipe = recipe_of(find_config(config)).name
    launch = ["--nproc_per_node", str(ranks)] if ranks else []
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "grpo.cli", "run", *launch, recipe, "--config", config]
        # No held-out tasks and no checkpoints in between: only the steps are timed.
        fixed = ["eval_dataset=null", "eval_every_n_steps=null", "save_every_n_steps=null"]
        settings = [f"output_dir={folder}/run", f"num_steps={steps}", *fixed, *overrides]
        subprocess.run([*command, *settings], check=True, stdout=subprocess.DEVNULL)
        return [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").open()]


def summary(values: list[float]) -> str:
    """``median (smallest-largest)``."""
    return f"{statistics.median(values):.3g} ({min(values):.3g}-{max(values):.3g})"


def main() -> None:
    """Run every variant ``--repeats`` times and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True)
    parser.add_argument("--each", nargs="*", default=[], help="overrides of every variant")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--skip", type=int, default=2, help="first steps left out")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--nproc_per_node", type=int, help="ranks, for a distributed recipe")
    parser.add_argument("--output", type=Path, help="JSON file for the metrics of every step")
    parser.add_argument("variants", nargs="*", default=[""], help="key=value,key=value")
    args = parser.parse_intermixed_args()
    seen: dict[str, list[dict[str, float]]] = {variant: [] for variant in args.variants}
    for _ in range(args.repeats):
        for variant in args.variants:
            overrides = [*args.each, *filter(None, variant.split(","))]
            seen[variant] += run(args.config, overrides, args.steps, args.nproc_per_node)[args.skip :]
    if args.output:
        args.output.write_text(json.dumps(seen, indent=1))
    print("| variant | " + " | ".join(COLUMNS) + " |\n" + "|---" * (len(COLUMNS) + 1) + "|")
    for variant, steps in seen.items():
        cells = (summary([step[column] for step in steps]) for column in COLUMNS)
        print(f"| {variant or 'as configured'} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
