"""The objective case by case: normalisation, masking, clipping, KL."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from grpo.logprobs import tempered_log_softmax
from grpo.loss import PolicyObjective, aggregation_weights
from grpo.loss.kl import k3, safe_exp
from grpo.types import TrainBatch


def make_batch(mask: list[list[int]], advantages: list[float] | None = None, **fields: object) -> TrainBatch:
    """A batch of which only mask, advantages and normalisers matter."""
    loss_mask = torch.tensor(mask, dtype=torch.bool)
    rows, width = loss_mask.shape
    settings = {
        "tokens": torch.zeros(rows, width, dtype=torch.long),
        "loss_mask": loss_mask,
        "lengths": torch.full((rows,), width),
        "advantages": torch.tensor(advantages or [0.0] * rows),
        "sampler_logprobs": torch.zeros(rows, width),
        "num_sequences": float(loss_mask.any(-1).sum()),
        "num_tokens": float(loss_mask.sum()),
    }
    return TrainBatch(**settings | fields)


def aggregate(values: list[list[float]], batch: TrainBatch, how: str, constant: int | None = None) -> float:
    return (torch.tensor(values) * aggregation_weights(batch, how, constant)).sum().item()


def test_loss_01_token_mean_is_over_the_whole_update() -> None:
    total = 0.0
    for tokens, mean in ((10, 3.0), (40, 0.5)):
        batch = make_batch([[1] * tokens], num_tokens=50.0)
        total += aggregate([[mean] * tokens], batch, "token_mean")
    assert total == pytest.approx(1.0)


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean", "sequence_sum", "constant_length"])
def test_loss_02_gradient_does_not_depend_on_the_cut(parts: int, aggregation: str) -> None:
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(4, 9, generator=generator) < 0.6
    mask[:, 0] = False
    batch = make_batch(
        mask.int().tolist(),
        advantages=[1.0, -0.5, 2.0, -1.5],
        old_logprobs=-torch.rand(4, 9, generator=generator),
        ref_logprobs=-torch.rand(4, 9, generator=generator),
    )
    objective = PolicyObjective(aggregation=aggregation, max_generated_tokens=9, kl_coeff=0.1)
    start = -torch.rand(4, 9, generator=generator)

    whole = start.clone().requires_grad_()
    expected = objective(whole, batch).loss
    expected.backward()

    cut = start.clone().requires_grad_()
    loss = torch.zeros(())
    for i, micro_batch in enumerate(batch.split(4 // parts)):
        rows = slice(i * (4 // parts), (i + 1) * (4 // parts))
        part = objective(cut[rows], micro_batch).loss
        part.backward()
        loss += part.detach()
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(cut.grad, whole.grad, rtol=1e-6, atol=1e-8)


def test_loss_02_token_mean_value() -> None:
    batch = make_batch([[1, 0, 0], [1, 1, 1]])
    assert aggregate([[4.0, 9, 9], [1.0, 1, 1]], batch, "token_mean") == pytest.approx(1.75)


PER_TOKEN, LENGTHS_2_4 = [[1.0, 1, 0, 0], [2.0, 2, 2, 2]], [[1, 1, 0, 0], [1, 1, 1, 1]]


@pytest.mark.parametrize(
    ("how", "expected"),
    [("sequence_mean", 1.5), ("token_mean", 10 / 6), ("constant_length", 0.625), ("sequence_sum", 5.0)],
    ids=["loss_04_grpo", "loss_04_token_mean", "loss_04_dr_grpo", "loss_05_sequence_sum"],
)
def test_loss_04_05_each_aggregation_is_its_own(how: str, expected: float) -> None:
    assert aggregate(PER_TOKEN, make_batch(LENGTHS_2_4), how, constant=8) == pytest.approx(expected)


def test_loss_07_masked_values_are_in_neither_numerator_nor_gradient() -> None:
    values = torch.tensor([[2.0, 60], [4, -20]], requires_grad=True)
    batch = make_batch([[1, 0], [1, 0]])
    loss = (values * aggregation_weights(batch, "token_mean", None)).sum()
    loss.backward()
    assert loss.item() == 3.0
    assert values.grad.tolist() == [[0.5, 0], [0.5, 0]]


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_loss_07_nothing_under_the_mask_reaches_loss_or_gradient(poison: float) -> None:
    logprobs = torch.tensor([[poison, -1.0, poison]], requires_grad=True)
    bad = torch.tensor([[poison, -1.2, poison]])
    batch = make_batch([[0, 1, 0]], advantages=[1.0], old_logprobs=bad, ref_logprobs=bad)
    output = PolicyObjective(kl_coeff=0.1)(logprobs, batch)
    output.loss.backward()
    assert math.isfinite(output.loss.item())
    assert logprobs.grad.isfinite().all() and logprobs.grad[0, 0] == 0 == logprobs.grad[0, 2]
    assert all(math.isfinite(float(total)) for total, _ in output.sums.values())


def test_loss_08_row_without_trained_token_is_finite_and_not_counted() -> None:
    logprobs = torch.tensor([[-1.0, -1], [-5, -5]], requires_grad=True)
    batch = make_batch([[1, 1], [0, 0]], advantages=[-1.0, -1.0])
    output = PolicyObjective()(logprobs, batch)
    output.loss.backward()
    assert output.loss.item() == pytest.approx(1.0)
    assert logprobs.grad[1].tolist() == [0, 0]


def test_loss_10_kl_is_averaged_over_the_same_tokens() -> None:
    batch = make_batch([[1, 1, 0]])
    policy_and_kl = [[1 + 0.5 * 0.1, 2 + 0.5 * 0.3, 100 + 0.5 * 50]]
    assert aggregate(policy_and_kl, batch, "token_mean") == pytest.approx(1.6)


def test_loss_10_kl_term_of_the_objective_ignores_padding() -> None:
    gap = math.log(2)
    batch = make_batch([[1, 1, 0]], ref_logprobs=torch.tensor([[-1 + gap, -1 - gap, 30.0]]))
    output = PolicyObjective(aggregation="token_mean", kl_coeff=0.5)(torch.full((1, 3), -1.0), batch)
    assert output.loss.item() == pytest.approx(0.5 * (0.3068528 + 0.1931472) / 2, abs=1e-6)


def test_loss_11_a_sequence_ratio_counts_once_per_sequence() -> None:
    mask = [[1, 0, 0, 0], [1, 1, 1, 1]]
    batch = make_batch(mask, advantages=[-1.0, -3.0])
    output = PolicyObjective(ratio_level="sequence")(torch.zeros(2, 4, requires_grad=True), batch)
    assert output.loss.item() == pytest.approx(2.0)


def test_loss_13_loss_over_all_tokens_of_all_ranks() -> None:
    total = 0.0
    for tokens, loss_sum in ((10, 10.0), (30, 60.0)):
        batch = make_batch([[1] * tokens], num_tokens=40.0)
        total += aggregate([[loss_sum / tokens] * tokens], batch, "token_mean")
    assert total == pytest.approx(1.75)


def test_loss_14_value_zero_gradient_not() -> None:
    logprobs = torch.tensor([[-1.0], [-2.0]], requires_grad=True)
    batch = make_batch([[1], [1]], advantages=[1.0, -1.0], old_logprobs=torch.tensor([[-1.0], [-2.0]]))
    output = PolicyObjective()(logprobs, batch)
    output.loss.backward()
    assert output.loss.item() == 0.0
    assert logprobs.grad.flatten().tolist() == [-0.5, 0.5]


def test_loss_14_old_logprobs_of_one_update_are_the_policy_itself() -> None:
    logprobs = torch.tensor([[-1.0], [-2.0]], requires_grad=True)
    PolicyObjective()(logprobs, make_batch([[1], [1]], advantages=[1.0, -1.0])).loss.backward()
    assert logprobs.grad.flatten().tolist() == [-0.5, 0.5]


def ratios(values: list[float], advantages: list[float], **settings: float) -> tuple[Tensor, dict]:
    """Loss terms per single-token sequence of the given ratios, and the metrics."""
    old = torch.zeros(len(values), 1)
    policy = torch.tensor(values).log()[:, None]
    terms = []
    for i, advantage in enumerate(advantages):
        batch = make_batch([[1]], advantages=[advantage], old_logprobs=old[:1])
        terms.append(PolicyObjective(**settings)(policy[i : i + 1], batch).loss)
    batch = make_batch([[1]] * len(values), advantages=advantages, old_logprobs=old)
    return torch.stack(terms), PolicyObjective(**settings)(policy, batch).sums


def test_loss_16_clip_fraction_counts_where_the_clip_binds() -> None:
    _, sums = ratios([0.7, 0.7, 1.3, 1.3], [1, -1, 1, -1])
    clipped, tokens = sums["clip_fraction"]
    assert clipped.item() / tokens.item() == 0.5


def test_loss_17_dual_clip_only_for_negative_advantages() -> None:
    terms, _ = ratios([1.0, 10.0], [1, -1], dual_clip=3.0)
    assert terms.tolist() == pytest.approx([-1.0, 3.0])


def test_loss_19_k3_values() -> None:
    policy = torch.zeros(3, dtype=torch.float64)
    ref = torch.tensor([0.0, math.log(2), -math.log(2)], dtype=torch.float64)
    assert k3(policy, ref).tolist() == pytest.approx([0, 0.3068528, 0.1931472], abs=1e-7)


def test_loss_20_kl_overflow_keeps_value_and_gradient_finite() -> None:
    policy = torch.zeros(1, requires_grad=True)
    value = k3(policy, torch.tensor([100.0]))
    value.sum().backward()
    assert value.item() == pytest.approx(485165174.41, rel=1e-6)
    assert policy.grad.isfinite().all()
    small = torch.tensor([-10.0, 10.0], dtype=torch.float64)
    assert k3(torch.zeros(2, dtype=torch.float64), small).tolist() == pytest.approx(
        (small.exp() - small - 1).tolist()
    )


def test_loss_20_ratio_overflow_keeps_the_gradient_finite() -> None:
    log_ratio = torch.tensor([200.0, -200.0], requires_grad=True)
    safe_exp(log_ratio).sum().backward()
    assert log_ratio.grad.isfinite().all()


def test_loss_22_float32_logprobs_give_ratio_one() -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16) * 8
    logprobs = tempered_log_softmax(logits, 1.0)
    assert logprobs.dtype == torch.float32
    batch = make_batch([[1] * 6], advantages=[1.0], old_logprobs=logprobs[:, 0][None])
    output = PolicyObjective()(logprobs[:, 0][None], batch)
    assert output.maxima["ratio/max"].item() == pytest.approx(1.0, abs=1e-4)


def test_loss_23_temperature_is_in_the_logprob() -> None:
    log_probs = tempered_log_softmax(torch.tensor([2.0, 0.0]), 0.5)
    assert log_probs[0].item() == pytest.approx(-0.0181499, abs=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {"clip_low": 0.0},
        {"clip_low": 1.5},
        {"clip_high": 0.0},
        {"dual_clip": 1.0},
        {"kl_coeff": -0.1},
        {"aggregation": "constant_length"},
        {"ratio_level": "sequence", "aggregation": "token_mean"},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        PolicyObjective(**settings)


def test_kl_without_reference_logprobs_is_refused() -> None:
    with pytest.raises(ValueError, match="ref_logprobs"):
        PolicyObjective(kl_coeff=0.1)(torch.zeros(1, 1), make_batch([[1]]))
