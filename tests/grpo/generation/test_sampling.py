"""Drawing tokens: the right distribution, the right number beside the token."""

from __future__ import annotations

import pytest
import torch

from grpo.generation.sampling import sample_tokens
from grpo.types import SamplingParams

P = torch.tensor([0.5, 0.3, 0.15, 0.05])


def params(**settings: object) -> SamplingParams:
    return SamplingParams(max_generated_tokens=1, **settings)


def frequencies(
    logits: torch.Tensor, settings: SamplingParams, undefined=None, draws: int = 20_000
) -> torch.Tensor:
    """Share of each token over evenly spread uniforms: exact up to 1 / draws."""
    uniforms = (torch.arange(draws, dtype=torch.float64) + 0.5) / draws
    tokens, _ = sample_tokens(logits.expand(draws, -1), settings, uniforms, undefined)
    return torch.bincount(tokens, minlength=len(logits)) / draws


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_come_as_often_as_the_softmax_says(temperature: float) -> None:
    want = (P.log() / temperature).softmax(-1)
    assert frequencies(P.log(), params(temperature=temperature)).tolist() == pytest.approx(
        want.tolist(), abs=1e-3
    )


def test_top_k_keeps_k_and_top_p_the_token_that_reaches_p() -> None:
    assert frequencies(P.log(), params(top_k=2)).tolist() == pytest.approx([0.625, 0.375, 0, 0], abs=1e-3)
    assert frequencies(P.log(), params(top_p=0.6)).tolist() == pytest.approx([0.625, 0.375, 0, 0], abs=1e-3)
    assert frequencies(P.log(), params(top_p=0.4)).tolist() == [1, 0, 0, 0]


def test_loss_25_logprobs_are_over_the_whole_vocabulary() -> None:
    # kept mass 0.8: a renormalised logprob would be ln(0.5 / 0.8) = -0.47 and the trainer's ratio 0.8
    tokens, logprobs = sample_tokens(P.log()[None], params(top_p=0.8), torch.tensor([0.1]))
    assert tokens.item() == 0
    assert logprobs.item() == pytest.approx(-0.6931472, abs=1e-6)


def test_greedy_takes_the_most_likely_token() -> None:
    tokens, logprobs = sample_tokens(P.log()[None], params(temperature=0.0), torch.tensor([0.99]))
    assert tokens.item() == 0 and logprobs.item() == pytest.approx(-0.6931472, abs=1e-6)


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_the_ends_of_the_unit_interval_give_possible_tokens(uniform: float) -> None:
    undefined = torch.tensor([True] + [False] * 9_998 + [True])
    logits = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    tokens, logprobs = sample_tokens(
        logits[None], params(), torch.tensor([uniform], dtype=torch.float64), undefined
    )
    assert 0 < tokens.item() < 9_999 and logprobs.isfinite().all()


def test_undefined_tokens_leave_the_distribution() -> None:
    undefined = torch.tensor([True, False, False, False])
    assert frequencies(P.log(), params(), undefined).tolist() == pytest.approx([0, 0.6, 0.3, 0.1], abs=1e-3)


@pytest.mark.parametrize(
    "bad", [{"temperature": -1.0}, {"top_k": 0}, {"top_p": 0.0}, {"top_p": 1.5}, {"max_generated_tokens": 0}]
)
def test_impossible_settings_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        SamplingParams(**{"max_generated_tokens": 1} | bad)
