"""An orderly end on SIGTERM, which a scheduler sends before it takes a machine away."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

from grpo.distributed.ranks import SOLO, Ranks

# EX_TEMPFAIL of sysexits.h: nothing is wrong, try again later. With resume_from_checkpoint=true.
EXIT_STOPPED = 75

# Names a file that ranks make when they have saved: torchrun, once told to stop, does not say how its
# ranks ended.
STOPPED_FILE = "GRPO_STOPPED_FILE"


class StopRequest:
    """Notes SIGTERM, so that the loop can finish its step and save; made when the loop begins.

    torchrun sends the same signal when another rank has failed. Then there is no step to finish: the
    collectives of this one may wait for the dead rank. So after the signal, this process watches its
    neighbours, and ends when one of them is gone before all ranks have agreed to stop.

    Args:
        ranks: all of them; on one device nothing is watched.
    """

    def __init__(self, ranks: Ranks = SOLO) -> None:
        self._ranks = ranks
        self._requested = False
        self._agreed = threading.Event()
        signal.signal(signal.SIGTERM, self._note)

    def agreed(self) -> bool:
        """Whether some rank was told to stop; all ranks ask at the same place, and hear the same."""
        if self._ranks.any(self._requested):
            self._agreed.set()
        return self._agreed.is_set()

    def exit(self) -> NoReturn:
        """End with the status that says: saved, and not at its end."""
        if path := os.environ.get(STOPPED_FILE):
            Path(path).touch()
        sys.exit(EXIT_STOPPED)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if not self._requested:
            self._requested = True
            threading.Thread(target=self._watch_neighbours, daemon=True).start()

    def _watch_neighbours(self) -> None:
        while not self._agreed.is_set():
            if not all(_is_alive(pid) for pid in self._ranks.neighbours):
                os._exit(128 + signal.SIGTERM)  # what the signal would have done without this class
            time.sleep(0.5)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
