"""Step checkpoints: atomic, complete, resumed exactly."""

from grpo.checkpoint.files import read_manifest, step_folders
from grpo.checkpoint.step_checkpointer import Stateful, StepCheckpointer

__all__ = ["Stateful", "StepCheckpointer", "read_manifest", "step_folders"]
