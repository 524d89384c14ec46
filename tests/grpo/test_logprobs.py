"""Chunked log-probabilities against the plain computation, and what they cost."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

from grpo.logprobs import entropy, target_logprobs, tempered_log_softmax


def plain(hidden: torch.Tensor, tokens: torch.Tensor, output: nn.Module, temperature: float) -> torch.Tensor:
    """[B, L - 1] log-probabilities of tokens[:, 1:], all logits at once."""
    log_probs = (output(hidden[:, :-1]).double() / temperature).log_softmax(-1)
    return log_probs.gather(-1, tokens[:, 1:, None])[..., 0]


def setting() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, nn.Module]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(3, 11, 8, generator=generator)
    tokens = torch.randint(0, 50, (3, 11), generator=generator)
    mask = torch.rand(3, 11, generator=generator) < 0.5
    mask[:, 0] = False
    torch.manual_seed(1)
    return hidden, tokens, mask, nn.Linear(8, 50, bias=False)


@pytest.mark.parametrize("chunk_size", [1, 4, 1000])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_equal_to_all_logits_at_once(chunk_size: int, temperature: float) -> None:
    hidden, tokens, mask, output = setting()
    hidden.requires_grad_()
    got, _ = target_logprobs(
        hidden, tokens, mask, output, weights=[output.weight], temperature=temperature, chunk_size=chunk_size
    )
    weight = torch.randn(3, 11, generator=torch.Generator().manual_seed(2))
    (got * weight).sum().backward()
    gradient, hidden.grad = hidden.grad, None
    output_gradient, output.weight.grad = output.weight.grad, None

    want = plain(hidden, tokens, output, temperature)
    (want * torch.where(mask, weight, 0)[:, 1:]).sum().backward()
    torch.testing.assert_close(got[:, 1:], torch.where(mask[:, 1:], want, 0).float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient, hidden.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(output_gradient, output.weight.grad, rtol=1e-4, atol=1e-5)


def test_loss_28_position_before_the_first_answer_token_predicts_it() -> None:
    # ids p r1 r2 eos: the three trained tokens are predicted by positions 0, 1 and 2
    seen = []

    def output(hidden: torch.Tensor) -> torch.Tensor:
        seen.append(hidden[:, 0].tolist())
        return torch.zeros(len(hidden), 5)

    hidden = torch.arange(4.0).view(1, 4, 1)
    mask = torch.tensor([[False, True, True, True]])
    with torch.no_grad():
        target_logprobs(hidden, torch.tensor([[1, 2, 3, 4]]), mask, output)
    assert seen == [[0.0, 1.0, 2.0]]


def test_loss_26_logprob_is_that_of_the_sampled_id() -> None:
    logits = torch.full((1, 2, 943), -100.0)
    logits[0, 0, 17], logits[0, 0, 942] = -0.2, -3.1
    got, _ = target_logprobs(logits, torch.tensor([[5, 942]]), torch.tensor([[False, True]]), lambda h: h)
    want = logits[0, 0].log_softmax(-1)
    assert got[0, 1].item() == pytest.approx(want[942].item()) != pytest.approx(want[17].item())


def test_first_token_cannot_be_trained() -> None:
    hidden, tokens, mask, output = setting()
    mask[1, 0] = True
    with pytest.raises(ValueError, match="first token"):
        target_logprobs(hidden, tokens, mask, output)


def test_undefined_ids_have_no_probability_and_no_part_in_the_entropy() -> None:
    undefined = torch.tensor([False, False, True, True])
    log_probs = tempered_log_softmax(torch.zeros(4), 1.0, undefined)
    assert log_probs.exp().tolist() == pytest.approx([0.5, 0.5, 0, 0])
    assert entropy(log_probs).item() == pytest.approx(torch.tensor(2.0).log().item())


def test_no_trained_token_gives_zeros_and_zero_gradient() -> None:
    hidden, tokens, mask, output = setting()
    hidden.requires_grad_()
    got, entropies = target_logprobs(hidden, tokens, torch.zeros_like(mask), output, weights=[output.weight])
    got.sum().backward()
    assert not got.any() and not entropies.any() and not hidden.grad.any()


PEAK = """
import resource, torch
from grpo.logprobs import target_logprobs
torch.manual_seed(0)
batch, length, width, vocabulary = 8, 256, 16, 50_000
hidden = torch.randn(batch, length, width, requires_grad=True)
tokens = torch.randint(0, vocabulary, (batch, length))
mask = torch.ones(batch, length, dtype=torch.bool)
mask[:, 0] = False
output = torch.nn.Linear(width, vocabulary, bias=False)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
target_logprobs(hidden, tokens, mask, output, weights=[output.weight], chunk_size=64)[0].sum().backward()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def test_peak_memory_stays_far_below_the_whole_logits() -> None:
    whole_mib = 8 * 256 * 50_000 * 4 / 2**20  # 390 MiB for one float32 copy; the naive way keeps several
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PEAK)], capture_output=True, text=True, check=True
    )
    assert float(result.stdout) < whole_mib / 3
