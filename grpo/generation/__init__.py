"""Engines that sample completions."""

from grpo.generation.engine import Engine
from grpo.generation.native import NativeEngine

__all__ = ["Engine", "NativeEngine"]
