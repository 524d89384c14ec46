"""A process that grades mathematics, which may be ended when a question has no end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path

_PROGRAM = Path(__file__).with_name("math_grader.py")


class GraderProcess:
    """Asks ``math_grader.py`` in a process of its own, started at the first question.

    A policy can write ``9^{9^{9}}``: only ending the process stops such arithmetic, and only
    another process bounds its memory. It serves any thread, one question at a time.

    Args:
        timeout_seconds: CPU time that one question may take.
    """

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._owner = 0
        self._end: weakref.finalize | None = None

    def equal(self, gold: str, answer: str, rel_tolerance: float) -> bool:
        """Whether two expressions are the same; see ``math_grader.equal``.

        Raises:
            TimeoutError: no verdict in time.
            RuntimeError: the grader failed; with its message.
        """
        question = json.dumps({"gold": gold, "answer": answer, "rel_tolerance": rel_tolerance})
        with self._lock:
            verdict = self._ask(question)
        if "error" in verdict:
            raise RuntimeError(f"grading {answer!r} against {gold!r} failed: {verdict['error']}")
        return verdict["equal"]

    def _ask(self, question: str) -> dict:
        process = self._running()
        try:
            process.stdin.write(question + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BaseException:
            # Interrupted in between: its verdict would be read as that of the next question.
            self._drop()
            raise
        if line:
            return json.loads(line)
        status = process.wait()
        self._drop()
        if status == -signal.SIGPROF:
            raise TimeoutError(f"no verdict within {self._timeout_seconds:g} s of CPU time on {question}")
        raise RuntimeError(f"the grader process ended with status {status} on {question}")

    def _running(self) -> subprocess.Popen[str]:
        # A forked child must not read the verdicts of its parent's questions.
        if self._process is None or self._owner != os.getpid():
            self._owner = os.getpid()
            self._process = subprocess.Popen(
                # -P: the program's folder holds a math.py, which must not stand for Python's.
                [sys.executable, "-P", str(_PROGRAM), str(self._timeout_seconds)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                # Ctrl-C is for the run; the grader ends with its pipe.
                start_new_session=True,
            )
            self._end = weakref.finalize(self, _end, self._process, self._owner)
        return self._process

    def _drop(self) -> None:
        self._process = None
        self._end()


def _end(process: subprocess.Popen[str], owner: int) -> None:
    if os.getpid() != owner:  # a forked child that exits leaves its parent's grader alone
        return
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        # What could not be written when the process ended has no reader any more.
        with contextlib.suppress(BrokenPipeError):
            stream.close()
