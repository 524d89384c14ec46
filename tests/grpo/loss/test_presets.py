"""Each preset against a float64 loop over sequences and tokens, written from its paper."""

from __future__ import annotations

import math

import pytest
import torch

from grpo.loss import PolicyObjective, bnpo_loss, dapo_loss, dr_grpo_loss, grpo_loss
from grpo.types import TrainBatch

MAX_TOKENS = 12


def random_batch(seed: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, TrainBatch]:
    generator = torch.Generator().manual_seed(seed)
    rows, width = 5, 10
    mask = torch.rand(rows, width, generator=generator) < 0.7
    mask[:, 0] = False
    mask[:, 1] = True

    def logprobs() -> torch.Tensor:
        return (-2 * torch.rand(rows, width, generator=generator, dtype=torch.float64)).to(dtype)

    policy = logprobs()
    return policy, TrainBatch(
        tokens=torch.zeros(rows, width, dtype=torch.long),
        loss_mask=mask,
        lengths=torch.full((rows,), width),
        advantages=torch.randn(rows, generator=generator, dtype=torch.float64).to(dtype),
        sampler_logprobs=logprobs(),
        old_logprobs=policy
        + 0.4 * torch.randn(rows, width, generator=generator, dtype=torch.float64).to(dtype),
        ref_logprobs=logprobs(),
        num_sequences=float(rows),
        num_tokens=float(mask.sum()),
    )


def loop(policy: torch.Tensor, batch: TrainBatch, low: float, high: float, beta: float, mean: str) -> float:
    """The loss from Python floats, token by token."""
    rows = []
    for i in range(len(batch)):
        terms = []
        for t in range(policy.shape[1]):
            if not batch.loss_mask[i, t]:
                continue
            new, old = policy[i, t].item(), batch.old_logprobs[i, t].item()
            ratio, advantage = math.exp(new - old), batch.advantages[i].item()
            surrogate = min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
            to_ref = batch.ref_logprobs[i, t].item() - new
            terms.append(-(surrogate - beta * (math.exp(to_ref) - to_ref - 1)))
        rows.append(terms)
    if mean == "sequences":
        return sum(sum(terms) / len(terms) for terms in rows) / len(rows)
    if mean == "tokens":
        return sum(map(sum, rows)) / sum(map(len, rows))
    return sum(map(sum, rows)) / (len(rows) * MAX_TOKENS)


PRESETS = [
    (grpo_loss(epsilon=0.2, kl_coeff=0.04), (0.2, 0.2, 0.04, "sequences")),
    (grpo_loss(), (0.2, 0.2, 0.0, "sequences")),
    (dr_grpo_loss(max_generated_tokens=MAX_TOKENS), (0.2, 0.2, 0.0, "constant")),
    (dr_grpo_loss(max_generated_tokens=MAX_TOKENS, epsilon=0.1, kl_coeff=0.1), (0.1, 0.1, 0.1, "constant")),
    (dapo_loss(), (0.2, 0.28, 0.0, "tokens")),
    (bnpo_loss(kl_coeff=0.02), (0.2, 0.2, 0.02, "tokens")),
]
IDS = ["grpo_kl", "grpo", "dr_grpo", "dr_grpo_kl", "dapo", "bnpo_kl"]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("objective", "formula"), PRESETS, ids=IDS)
def test_preset_equals_the_loop(objective: PolicyObjective, formula: tuple, seed: int) -> None:
    policy, batch = random_batch(seed)
    assert objective(policy, batch).loss.item() == pytest.approx(loop(policy, batch, *formula), rel=1e-6)


@pytest.mark.parametrize(("objective", "formula"), PRESETS, ids=IDS)
def test_gradient_equals_finite_differences_of_the_loop(objective: PolicyObjective, formula: tuple) -> None:
    policy, batch = random_batch(2)
    variable = policy.clone().requires_grad_()
    objective(variable, batch).loss.backward()
    for i, t in batch.loss_mask.nonzero()[::5].tolist():
        step = torch.zeros_like(policy)
        step[i, t] = 1e-6
        slope = (loop(policy + step, batch, *formula) - loop(policy - step, batch, *formula)) / 2e-6
        assert variable.grad[i, t].item() == pytest.approx(slope, abs=1e-6)


def test_reference_is_needed_only_with_kl() -> None:
    assert grpo_loss(kl_coeff=0.1).needs_reference and grpo_loss(kl_coeff=0.1).trains_flat_groups
    assert not grpo_loss().needs_reference and not dapo_loss().trains_flat_groups


def test_checks_find_impossible_values_without_a_model() -> None:
    with pytest.raises(ValueError, match="clip"):
        grpo_loss.check(epsilon=-1)
