"""Seconds per stage of a step."""

from __future__ import annotations

import time


class StageClock:
    """Laps of a step: ``lap(name)`` adds the time since the last lap to ``time/<name>``."""

    def __init__(self) -> None:
        self._start = self._last = time.perf_counter()
        self._laps: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        """The time since the last lap, or since the clock was made, was ``stage``'s."""
        now = time.perf_counter()
        key = f"time/{stage}"
        self._laps[key] = self._laps.get(key, 0.0) + now - self._last
        self._last = now

    def seconds(self) -> dict[str, float]:
        """``time/<stage>`` of all laps, and ``time/total``."""
        return {**self._laps, "time/total": time.perf_counter() - self._start}
