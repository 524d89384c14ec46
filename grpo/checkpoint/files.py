"""Folders that are either complete or not there, and how to tell."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo.config.errors import ConfigError

MANIFEST = "manifest.json"
_STEP_FOLDER = re.compile(r"step_(\d+)")


def step_folders(output_dir: Path) -> dict[int, Path]:
    """Complete checkpoints by step, oldest first: named ``step_N`` and holding a manifest."""
    found = {}
    for path in output_dir.glob("step_*"):
        match = _STEP_FOLDER.fullmatch(path.name)
        if match and (path / MANIFEST).is_file():
            found[int(match[1])] = path
    return dict(sorted(found.items()))


def write_folder(final: Path, write: Callable[[Path], None], about: dict[str, Any]) -> None:
    """Fill a folder beside its final place, sync it, and rename it there.

    Whatever is killed when, a folder of the final name is complete. What earlier, killed writes
    left is removed first.

    Args:
        final: where the folder will be.
        write: fills the folder it is given.
        about: goes into the manifest, with each file's size and SHA-256.
    """
    for debris in final.parent.glob("step_*.tmp"):
        shutil.rmtree(debris)
    draft = final.with_name(final.name + ".tmp")
    draft.mkdir(parents=True)
    write(draft)
    files = {
        str(path.relative_to(draft)): {"bytes": path.stat().st_size, "sha256": _sha256(path)}
        for path in sorted(draft.rglob("*"))
        if path.is_file()
    }
    (draft / MANIFEST).write_text(json.dumps({**about, "files": files}, indent=1) + "\n")
    for path in sorted(draft.rglob("*")):
        _sync(path)
    _sync(draft)
    draft.rename(final)
    _sync(final.parent)


def remove_folder(folder: Path) -> None:
    """Delete a complete folder; killed halfway, what is left has a draft's name, not the final one."""
    draft = folder.with_name(folder.name + ".tmp")
    folder.rename(draft)
    shutil.rmtree(draft)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a complete folder, after every file it lists was found whole.

    Raises:
        ConfigError: names the first file that is missing, of another size or of other content.
    """
    manifest = json.loads((folder / MANIFEST).read_text())
    for name, expected in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            raise ConfigError(f"{path}: missing, though {MANIFEST} lists it; the checkpoint cannot be used")
        if path.stat().st_size != expected["bytes"] or _sha256(path) != expected["sha256"]:
            raise ConfigError(
                f"{path}: damaged (size or SHA-256 differs from {MANIFEST}); the checkpoint cannot be used"
            )
    return manifest


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Have the system write a file or a folder's entries to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
