"""Evaluation of a policy."""

from grpo.eval.held_out import evaluate

__all__ = ["evaluate"]
