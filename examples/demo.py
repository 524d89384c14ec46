"""GRPO on a CPU in some minutes: the embedded model before and after, on sums it never saw.

    make demo

Runs the recipe as a user would, then reads what it wrote.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

RECIPE, CONFIG = "grpo_full_finetune_single_device", "tiny/full_single_device"


def main() -> None:
    """Train, compare, and say where everything is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--output-dir", type=Path, help="default: outputs/demo, or demo_2, ... where it is taken"
    )
    parser.add_argument("overrides", nargs="*", help="key=value, passed on to the recipe")
    args = parser.parse_args()
    folder = args.output_dir or _unused(Path("outputs"))

    command = [RECIPE, "--config", CONFIG, f"output_dir={folder}", *args.overrides]
    print(f"$ tune run {' '.join(command)}", flush=True)
    start = time.perf_counter()
    # The `tune` of this Python's environment, whatever is first on the PATH.
    tune = Path(sys.executable).with_name("tune")
    finished = subprocess.run([str(tune), "run", *command])
    if finished.returncode:
        sys.exit(finished.returncode)
    seconds = time.perf_counter() - start

    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    evaluated = [line for line in lines if "eval/success_rate" in line]
    first, last = evaluated[0], evaluated[-1]
    result = {
        "before": first["eval/success_rate"],
        "after": last["eval/success_rate"],
        "tasks": last["eval/tasks"],
        "seconds": round(seconds, 1),
    }
    (folder / "demo.json").write_text(json.dumps(result, indent=1) + "\n")
    print(
        f"\nHeld-out sums solved, greedy, {result['tasks']} tasks that training never saw:\n"
        f"  before  {result['before']:6.1%}\n"
        f"  after   {result['after']:6.1%}   ({last['step']} steps, {seconds:.0f} s)\n\n"
        f"{folder}/metrics.jsonl    a line of numbers per step\n"
        f"{folder}/rollouts.jsonl   what was sampled, and what it earned\n"
        f"{folder}/step_{last['step']}         the trained model, a Hugging Face folder\n"
        f"{folder}/demo.json        the numbers above"
    )


def _unused(parent: Path) -> Path:
    """``demo``, or the first of ``demo_2``, ``demo_3``, ... that is not there: no run is written over."""
    folder, number = parent / "demo", 1
    while folder.exists():
        number += 1
        folder = parent / f"demo_{number}"
    return folder


if __name__ == "__main__":
    main()
