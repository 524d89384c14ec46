"""The published losses, by name. Each says where it comes from and where it departs."""

from __future__ import annotations

from grpo.loss.objective import PolicyObjective


def grpo_loss(epsilon: float = 0.2, kl_coeff: float = 0.0) -> PolicyObjective:
    """GRPO: token ratios, symmetric clipping, mean over sequences of token means, k3 in the loss.

    DeepSeekMath, arXiv 2402.03300, eq. 3 and 4. Departure: ``kl_coeff`` is 0 unless asked for
    (the paper has 0.04), which is what most later work uses and saves the reference policy.
    """
    return PolicyObjective(clip_low=epsilon, clip_high=epsilon, kl_coeff=kl_coeff)


def dr_grpo_loss(max_generated_tokens: int, epsilon: float = 0.2, kl_coeff: float = 0.0) -> PolicyObjective:
    """Dr. GRPO: sums over tokens divided by a constant, so that long answers are not favoured.

    arXiv 2503.20783, section 3.2; goes with ``GroupAdvantage(scale="none")``. The constant is
    ``max_generated_tokens``, as in the authors' code.
    """
    return PolicyObjective(
        clip_low=epsilon,
        clip_high=epsilon,
        kl_coeff=kl_coeff,
        aggregation="constant_length",
        max_generated_tokens=max_generated_tokens,
    )


def dapo_loss(epsilon_low: float = 0.2, epsilon_high: float = 0.28) -> PolicyObjective:
    """DAPO: clip-higher and the mean over all tokens of the update, no KL.

    arXiv 2503.14476, eq. 8. Its dynamic sampling and its over-long penalty belong to sampling
    and rewards (:class:`grpo.rewards.SoftOverlong`), not to the loss.
    """
    return PolicyObjective(clip_low=epsilon_low, clip_high=epsilon_high, aggregation="token_mean")


def bnpo_loss(epsilon: float = 0.2, kl_coeff: float = 0.0) -> PolicyObjective:
    """Token mean with symmetric clipping, the loss that TRL calls ``bnpo``.

    Departure: TRL divides by the tokens of the local batch, this by those of the whole update,
    so that the gradient does not depend on how the batch is cut. The Beta normalisation of
    rewards of the paper of that name (arXiv 2506.02864) is not part of it.
    """
    return PolicyObjective(clip_low=epsilon, clip_high=epsilon, kl_coeff=kl_coeff, aggregation="token_mean")


# Building a preset is its own check: no model is needed to find an impossible value.
for _preset in (grpo_loss, dr_grpo_loss, dapo_loss, bnpo_loss):
    _preset.check = _preset
