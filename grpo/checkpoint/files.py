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
from grpo.distributed import SOLO, Ranks

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


def write_folder(
    final: Path, write: Callable[[Path], None], about: dict[str, Any], ranks: Ranks = SOLO
) -> None:
    """Fill a folder beside its final place, sync it, and rename it there.

    Whatever is killed when, a folder of the final name is complete. What earlier, killed writes
    left is removed first. Ranks on several machines need a file system that they share.

    Args:
        final: where the folder will be.
        write: fills the folder it is given; every rank calls it, and writes its own files.
        about: goes into the manifest, with each file's size and SHA-256.
        ranks: all of them; each reads and syncs its part of the files.
    """
    draft = final.with_name(final.name + ".tmp")
    if ranks.is_main:
        for debris in final.parent.glob("step_*.tmp"):
            shutil.rmtree(debris)
        draft.mkdir(parents=True)
    ranks.wait_for_all()
    write(draft)
    ranks.wait_for_all()
    entries = {}
    for path in _files_of(draft)[ranks.rank :: ranks.size]:
        _sync(path)
        entries[str(path.relative_to(draft))] = {"bytes": path.stat().st_size, "sha256": _sha256(path)}
    gathered = ranks.gather(entries)
    if not ranks.is_main:
        return
    files = dict(sorted(item for part in gathered for item in part.items()))
    (draft / MANIFEST).write_text(json.dumps({**about, "files": files}, indent=1) + "\n")
    _sync(draft / MANIFEST)
    for folder in [path for path in draft.rglob("*") if path.is_dir()]:
        _sync(folder)
    _sync(draft)
    draft.rename(final)
    _sync(final.parent)


def _files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def remove_folder(folder: Path) -> None:
    """Delete a complete folder; killed halfway, what is left has a draft's name, not the final one."""
    draft = folder.with_name(folder.name + ".tmp")
    folder.rename(draft)
    shutil.rmtree(draft)


def read_manifest(folder: Path, ranks: Ranks = SOLO) -> dict[str, Any]:
    """The manifest of a complete folder, after every file it lists was found whole.

    Each rank reads its part of the files.

    Raises:
        ConfigError: names the first file that is missing, of another size or of other content.
    """
    manifest = json.loads((folder / MANIFEST).read_text())
    for name, expected in list(manifest["files"].items())[ranks.rank :: ranks.size]:
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
