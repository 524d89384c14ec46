"""GRPO in plain PyTorch: the parts that the recipes put together."""

__version__ = "0.1.0"
