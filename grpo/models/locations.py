"""Where checkpoints lie: real folders, and the embedded model under the name ``tiny``."""

from __future__ import annotations

from pathlib import Path

TINY_NAME = "tiny"


def tiny_model_dir() -> Path:
    """The Hugging Face folder of the embedded model, inside the installed package."""
    return Path(__file__).resolve().parent / "tiny"


def resolve_checkpoint_dir(name_or_path: str | Path) -> Path:
    """The folder that a config means: ``tiny`` is the embedded model unless such a folder exists."""
    path = Path(name_or_path).expanduser()
    if str(name_or_path) == TINY_NAME and not path.is_dir():
        return tiny_model_dir()
    return path
