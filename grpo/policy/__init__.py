"""The policy: its weights, its log-probabilities, its reference and its updates."""

from grpo.policy.load import DTYPES, build_model, check_model, fill_model, load_model
from grpo.policy.policy import Policy
from grpo.policy.reference import Reference, adapters_off
from grpo.policy.update import apply_gradients

__all__ = [
    "DTYPES",
    "Policy",
    "Reference",
    "adapters_off",
    "apply_gradients",
    "build_model",
    "check_model",
    "fill_model",
    "load_model",
]
