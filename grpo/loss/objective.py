"""One policy-gradient objective with separate axes; the published losses are presets of it.

For a trained token t of sequence i, with ratio r = exp(policy - old) and advantage A::

    term[i, t] = -min(r * A, clip(r, 1 - clip_low, 1 + clip_high) * A)  +  kl_coeff * KL[i, t]
    loss       = sum over i, t of  weight[i, t] * term[i, t]

``ratio_level`` says whether r belongs to a token or to its sequence, ``aggregation`` what the
weights are. All weights divide by totals of the whole update, so the loss of a batch is the
plain sum over its micro-batches, however it is cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from grpo.loss.kl import ESTIMATORS, safe_exp
from grpo.types import LossOutput, TrainBatch

Aggregation = Literal["sequence_mean", "token_mean", "sequence_sum", "constant_length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyObjective:
    """The objective above, a callable from logprobs and batch to :class:`LossOutput`.

    Args:
        ratio_level: ``token``, or ``sequence``: the geometric mean over the sequence's tokens
            (GSPO, arXiv 2507.18071, eq. 7).
        clip_low, clip_high: how far the ratio may fall below and rise above 1 (PPO; DAPO's
            clip-higher has ``clip_high > clip_low``, arXiv 2503.14476, eq. 10).
        dual_clip: for A < 0 the term is at most ``-dual_clip * A`` (arXiv 1912.09729, eq. 5).
        aggregation: ``sequence_mean``: mean of the means of the sequences; ``token_mean``: mean
            over all tokens of the update; ``sequence_sum``: mean of the sums of the sequences;
            ``constant_length``: ``sequence_sum`` divided by ``max_generated_tokens``.
        max_generated_tokens: the constant of ``constant_length``.
        kl_coeff: weight of the KL term; 0 needs no reference policy.
        kl_estimator: ``k1``, ``k2`` or ``k3``, see :mod:`grpo.loss.kl`.

    Raises:
        ValueError: for combinations that make no sense.
    """

    ratio_level: Literal["token", "sequence"] = "token"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    aggregation: Aggregation = "sequence_mean"
    max_generated_tokens: int | None = None
    kl_coeff: float = 0.0
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"

    def __post_init__(self) -> None:
        if not 0 < self.clip_low <= 1:
            raise ValueError(f"the lower clip range must lie in (0, 1], got {self.clip_low}")
        if self.clip_high <= 0:
            raise ValueError(f"the upper clip range must be above 0, got {self.clip_high}")
        if self.dual_clip is not None and self.dual_clip <= 1:
            raise ValueError(f"dual_clip must be above 1, got {self.dual_clip}")
        if self.kl_coeff < 0:
            raise ValueError(f"kl_coeff must be 0 or more, got {self.kl_coeff}")
        if self.aggregation == "constant_length" and (self.max_generated_tokens or 0) < 1:
            raise ValueError("constant_length needs max_generated_tokens of at least 1")
        if self.ratio_level == "sequence" and self.aggregation != "sequence_mean":
            raise ValueError(f"sequence ratios need aggregation sequence_mean, got {self.aggregation}")

    @classmethod
    def check(cls, **settings: object) -> None:
        """Find impossible settings before a model is loaded, by building the objective."""
        cls(**settings)

    @property
    def needs_reference(self) -> bool:
        """Whether ``batch.ref_logprobs`` must be there."""
        return self.kl_coeff > 0

    @property
    def trains_flat_groups(self) -> bool:
        """Whether a sequence of advantage 0 has a gradient."""
        return self.kl_coeff > 0

    def __call__(self, policy_logprobs: Tensor, batch: TrainBatch) -> LossOutput:
        """Loss of one micro-batch.

        Args:
            policy_logprobs: [B, L] float32 with gradient, aligned with ``batch.tokens``.
            batch: B rows; its normalisers are those of the whole update.
        """
        mask = batch.loss_mask
        # Selected away, not multiplied away: NaN or Inf under the mask must not reach a gradient.
        policy = torch.where(mask, policy_logprobs, 0)
        old = policy.detach() if batch.old_logprobs is None else torch.where(mask, batch.old_logprobs, 0)
        log_ratio = policy - old
        if self.ratio_level == "sequence":
            log_ratio = _sequence_mean(log_ratio, mask).expand_as(mask)
        ratio = safe_exp(log_ratio)
        weight = aggregation_weights(batch, self.aggregation, self.max_generated_tokens)

        advantages = batch.advantages[:, None]
        policy_term, clipped = self._policy_term(ratio, advantages)
        loss = policy_loss = (torch.where(mask, policy_term, 0) * weight).sum()
        one, tokens = torch.ones_like(loss), mask.sum()
        sums = {
            "policy_loss": (policy_loss.detach(), one),
            "clip_fraction": ((clipped & mask).sum(), tokens),
            "approx_kl": (torch.where(mask, ratio - 1 - log_ratio, 0).sum().detach(), tokens),
        }
        if self.needs_reference:
            if batch.ref_logprobs is None:
                raise ValueError("kl_coeff is above 0, but the batch has no ref_logprobs")
            kl = ESTIMATORS[self.kl_estimator](policy, torch.where(mask, batch.ref_logprobs, 0))
            loss = loss + self.kl_coeff * (kl * weight).sum()
            sums["kl_loss"] = ((kl * weight).sum().detach(), one)
        sums["loss"] = (loss.detach(), one)
        maxima = {"ratio/max": torch.where(mask, ratio, 0).max().detach()}
        return LossOutput(loss=loss, sums=sums, maxima=maxima)

    def _policy_term(self, ratio: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
        """Term per token and whether clipping binds it (which depends on the sign of A)."""
        clipped_ratio = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        term = -torch.minimum(ratio * advantages, clipped_ratio * advantages)
        binds = ((ratio < 1 - self.clip_low) & (advantages < 0)) | (
            (ratio > 1 + self.clip_high) & (advantages > 0)
        )
        if self.dual_clip is not None:
            bound = -self.dual_clip * advantages
            binds = binds | ((advantages < 0) & (term > bound))
            term = torch.where(advantages < 0, torch.minimum(term, bound), term)
        return term, binds


def aggregation_weights(batch: TrainBatch, aggregation: Aggregation, constant_length: int | None) -> Tensor:
    """[B, L] weights that turn a plain sum over tokens into the wanted mean; 0 outside the mask.

    A row without a trained token has weight 0 and is not counted in ``batch.num_sequences``.
    """
    mask = batch.loss_mask.float()
    if aggregation == "token_mean":
        return mask / batch.num_tokens
    weight = mask / batch.num_sequences
    if aggregation == "sequence_mean":
        return weight / mask.sum(-1, keepdim=True).clamp(min=1)
    if aggregation == "constant_length":
        return weight / constant_length
    return weight


def _sequence_mean(values: Tensor, mask: Tensor) -> Tensor:
    """[B, 1] mean over the trained tokens of each row."""
    return torch.where(mask, values, 0).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
