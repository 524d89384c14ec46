"""Estimators of KL(policy || reference) from the sampled tokens alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# exp(20) is finite in float32 and far beyond any ratio that should be trained on. The exponent is
# clamped before exp: clamping the result would leave an infinite derivative times zero behind.
MAX_LOG_RATIO = 20.0


def safe_exp(log_ratio: Tensor) -> Tensor:
    """exp with its exponent clamped to +-20; beyond that value and gradient stay finite."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def k1(policy_logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """log(policy / ref): unbiased as a value; its gradient has expectation 0 when used in a loss."""
    return policy_logprobs - ref_logprobs


def k2(policy_logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Half the squared log-ratio: biased as a value, unbiased gradient of the KL on-policy."""
    return (policy_logprobs - ref_logprobs).square() / 2


def k3(policy_logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """ref/policy - log(ref/policy) - 1, never negative (Schulman, "Approximating KL divergence")."""
    log_ratio = (ref_logprobs - policy_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return torch.expm1(log_ratio) - log_ratio


ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
