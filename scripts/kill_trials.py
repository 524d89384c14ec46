"""Kill one rank of a distributed run at a random moment, many times over.

    python scripts/kill_trials.py --trials 30

Every trial starts the recipe on ``--ranks`` processes, sends SIGKILL to one of them at a moment between
the start of the processes and several steps later, and checks that the whole job ends within a minute
with a status that is not 0, that every checkpoint's files are those of its manifest, and that no process
is left. The next trial resumes what the last one left; the last run is left alone, and has to reach the
end. Every step is saved, so that some kills hit a save. Linux only: it finds the ranks in ``/proc``.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from grpo.checkpoint import read_manifest, step_folders

RECIPE = "grpo_full_finetune_distributed"
SETTINGS = (
    "batch_size=2",
    "grpo_samples=2",
    "save_every_n_steps=1",
    "checkpointer.keep_last_n_checkpoints=2",
    "lr_scheduler=null",
    "eval_dataset=null",
    "eval_every_n_steps=null",
    "resume_from_checkpoint=true",
)
ENDLESS = 1_000_000
LONGEST_END = 60.0  # seconds from the kill until the launcher has ended
LONGEST_START = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What one kill did.

    Attributes:
        rank: the killed one.
        after: seconds between the start of the ranks and the kill.
        seconds: from the kill to the end of the job.
        status: of the launcher.
        step: newest complete checkpoint; 0 when there is none yet.
    """

    rank: int
    after: float
    seconds: float
    status: int
    step: int


def start(output_dir: Path, ranks: int, num_steps: int) -> subprocess.Popen[bytes]:
    """The recipe under its launcher, which leads a process group of its own."""
    recipe = ["run", "--nproc_per_node", str(ranks), RECIPE, "--config", "tiny/full_distributed"]
    command = [sys.executable, "-m", "grpo.cli", *recipe, *SETTINGS]
    log = (output_dir.parent / "log.txt").open("ab")
    return subprocess.Popen(
        [*command, f"output_dir={output_dir}", f"num_steps={num_steps}"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


def ranks_of(launcher: int) -> dict[int, int]:
    """Process ids of a launcher's ranks, by rank."""
    listing = subprocess.run(["ps", "-o", "pid=", "--ppid", str(launcher)], capture_output=True, text=True)
    found = {}
    for pid in map(int, listing.stdout.split()):
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):  # ended since
            continue
        found |= {int(entry[5:]): pid for entry in environment if entry.startswith(b"RANK=")}
    return found


def kill_a_rank(output_dir: Path, ranks: int, draws: random.Random, longest: float) -> Trial:
    """Start, kill, wait and check.

    Args:
        output_dir: of the run; what is in it is resumed.
        ranks: how many there are.
        draws: who is killed, and when.
        longest: seconds after the start of the ranks at which the latest kill comes.

    Raises:
        AssertionError: the job hangs, ends as if nothing had happened, leaves a process or breaks a
            checkpoint.
    """
    launcher = start(output_dir, ranks, ENDLESS)
    try:
        deadline = time.monotonic() + LONGEST_START
        while len(pids := ranks_of(launcher.pid)) < ranks:
            assert launcher.poll() is None, f"ended with {launcher.returncode} before it was killed"
            assert time.monotonic() < deadline, "the ranks did not start"
            time.sleep(0.05)
        rank, after = draws.randrange(ranks), draws.uniform(0.0, longest)
        time.sleep(after)
        assert launcher.poll() is None, f"ended with {launcher.returncode} before it was killed"
        os.kill(pids[rank], signal.SIGKILL)
        killed = time.monotonic()
        try:
            status = launcher.wait(LONGEST_END)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"hangs {LONGEST_END:.0f} s after rank {rank} was killed") from None
        seconds = time.monotonic() - killed
        assert status != 0, "a rank was killed, and the launcher's status is 0"
        left = [pid for pid in pids.values() if Path(f"/proc/{pid}").exists()]
        assert not left, f"processes {left} outlived their launcher"
    finally:
        if launcher.poll() is None:
            os.killpg(launcher.pid, signal.SIGKILL)
            launcher.wait()
    folders = step_folders(output_dir)
    for folder in folders.values():
        read_manifest(folder)
    return Trial(rank=rank, after=after, seconds=seconds, status=status, step=max(folders, default=0))


def finish(output_dir: Path, ranks: int) -> int:
    """Resume once more, for three steps, without a kill; the last step."""
    last = max(step_folders(output_dir), default=0) + 3
    status = start(output_dir, ranks, last).wait(LONGEST_START)
    assert status == 0, f"the run that nobody killed ended with {status}"
    read_manifest(step_folders(output_dir)[last])
    return last


def main() -> None:
    """Run the trials; print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--longest", type=float, default=15.0, help="seconds to the latest kill")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    draws = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        output_dir = Path(folder) / "run"
        ends = []
        for number in range(1, args.trials + 1):
            trial = kill_a_rank(output_dir, args.ranks, draws, args.longest)
            ends.append(trial.seconds)
            print(
                f"{number:3}: rank {trial.rank} killed after {trial.after:4.1f} s; ended "
                f"{trial.seconds:4.1f} s later with {trial.status}; newest checkpoint: step {trial.step}",
                flush=True,
            )
        last = finish(output_dir, args.ranks)
    print(f"{args.trials} kills, the job ended within {max(ends):.1f} s each time; resumed to step {last}")


if __name__ == "__main__":
    main()
