from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

# Components are imported by name: make those of `config_parts.py` importable.
sys.path.append(str(Path(__file__).parent))


@pytest.fixture
def base_tree(tmp_path: Path) -> dict[str, Any]:
    """A small, right config for TrainConfig, made of the parts in `config_parts.py`."""
    return {
        "output_dir": str(tmp_path / "out"),
        "model": {"_component_": "config_parts.tiny_model", "max_seq_len": 128},
        "tokenizer": {"_component_": "config_parts.Tokenizer", "path": "tok"},
        "checkpointer": {
            "_component_": "config_parts.Checkpointer",
            "checkpoint_dir": str(tmp_path / "ckpt"),
        },
        "dataset": {"_component_": "config_parts.dataset", "path": "train", "split": "train"},
        "prompt": {"_component_": "config_parts.Prompt", "system": "Be brief."},
        "max_prompt_tokens": 64,
        "batch_size": 4,
        "engine": {"_component_": "config_parts.Engine"},
        "grpo_samples": 4,
        "forward_batch_size": 8,
        "max_generated_tokens": 32,
        "rewards": [
            {"_component_": "config_parts.Exact", "success": True, "name": "exact"},
            {"_component_": "config_parts.Tags", "tags": ["think", "answer"], "weight": 0.5},
        ],
        "advantage": {"_component_": "config_parts.Advantage"},
        "loss": {"_component_": "config_parts.loss", "kl_coeff": 0.0},
        "optimizer": {"_component_": "torch.optim.AdamW", "lr": 1e-5, "betas": [0.9, 0.95]},
        "lr_scheduler": {"_component_": "config_parts.schedule", "num_warmup_steps": 2},
        "num_steps": 3,
    }


@pytest.fixture
def write_config(tmp_path: Path) -> Callable[[dict[str, Any] | str], Path]:
    """Write a tree, or YAML text, to a file."""

    def write(content: dict[str, Any] | str) -> Path:
        path = tmp_path / "config.yaml"
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False))
        return path

    return write
