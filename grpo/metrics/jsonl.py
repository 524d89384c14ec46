"""Records as lines of JSON, flushed one by one, and cut back to a checkpoint on resume."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class JsonlWriter:
    """Appends records to a file; each holds its ``step``.

    Args:
        path: the file; made when it is not there.
        after_step: steps that the run keeps. Lines of later steps (written by a run that was
            killed after its last checkpoint) and a torn last line are cut off, so that no step
            stands twice.
    """

    def __init__(self, path: Path, after_step: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            _keep_lines(path, after_step)
        self._file = path.open("a", encoding="utf-8")

    def write(self, record: Mapping[str, Any]) -> None:
        """One line, on its way to the disk when this returns; NaN and infinity become null."""
        self._file.write(json.dumps(_finite(record), ensure_ascii=False, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _keep_lines(path: Path, after_step: int) -> None:
    kept = []
    # Bytes: a torn character must not fail, and U+2028 in a completion must not end a line.
    for line in path.read_bytes().split(b"\n")[:-1]:
        if json.loads(line)["step"] > after_step:
            break
        kept.append(line + b"\n")
    draft = path.with_name(path.name + ".tmp")
    draft.write_bytes(b"".join(kept))
    os.replace(draft, path)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
