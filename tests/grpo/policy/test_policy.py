"""The policy's log-probabilities: equal to the model's, to the sampler's, and to themselves."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from grpo.batching import pack
from grpo.generation import NativeEngine
from grpo.loss import grpo_loss
from grpo.policy import Policy
from grpo.types import SamplingParams, Scored, TrainBatch
from tests.grpo.conftest import SIZES, VOCAB, make_rollouts, prompt_batch

ROLLOUTS = make_rollouts(
    [[5, 6, 7], [9], [3, 4]], [[8, 1, 2], [4, 4, 6, 2], [7]], loss_mask=[[1, 1, 1], [1, 0, 1, 1], [1]]
)


@pytest.fixture
def batch() -> TrainBatch:
    scored = Scored(rollouts=ROLLOUTS, rewards=[1.0, 0.0, 1.0], components={}, success=[None] * 3)
    return pack(scored, torch.tensor([1.0, -1.0, 0.5]), 0, keep_flat=True)


def by_hand(model: nn.Module, batch: TrainBatch, temperature: float) -> torch.Tensor:
    """[B, L] from the model's whole logits, row by row without padding."""
    out = torch.zeros(batch.tokens.shape)
    for i, length in enumerate(batch.lengths.tolist()):
        ids = batch.tokens[i, :length]
        log_probs = (model(ids[None])[0] / temperature).log_softmax(-1)
        for t in batch.loss_mask[i].nonzero()[:, 0].tolist():
            out[i, t] = log_probs[t - 1, ids[t]]
    return out


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("activation_checkpointing", [False, True])
def test_logprobs_and_gradients_equal_the_models(
    model: nn.Module, batch: TrainBatch, temperature: float, activation_checkpointing: bool
) -> None:
    policy = Policy(
        model,
        temperature=temperature,
        logits_chunk_size=2,
        activation_checkpointing=activation_checkpointing,
    )
    got, _ = policy.logprobs(batch)
    got.square().sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    want = by_hand(model, batch, temperature)
    want.square().sum().backward()
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-3, atol=1e-4)


def test_untied_heads_get_their_gradient(batch: TrainBatch) -> None:
    from torchtune.models.llama3 import llama3

    torch.manual_seed(0)
    model = llama3(
        vocab_size=VOCAB,
        num_layers=1,
        num_heads=4,
        num_kv_heads=2,
        embed_dim=32,
        max_seq_len=64,
        intermediate_dim=48,
    )
    Policy(model, temperature=1.0).logprobs(batch)[0].sum().backward()
    gradient = model.output.weight.grad.clone()
    model.zero_grad()
    by_hand(model, batch, 1.0).sum().backward()
    torch.testing.assert_close(gradient, model.output.weight.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_policy_agrees_with_the_sampler(model: nn.Module, tokenizer, dtype: torch.dtype | None) -> None:
    undefined = torch.arange(VOCAB) >= 35
    engine = NativeEngine(
        model=model,
        tokenizer=tokenizer,
        forward_batch_size=8,
        seed=0,
        undefined=undefined,
        autocast_dtype=dtype,
    )
    sampling = SamplingParams(max_generated_tokens=10, temperature=0.8, stop_ids=(2,))
    rollouts = engine.generate(prompt_batch([5, 6, 7], [9, 1, 2, 3, 4]), sampling, num_samples=6)
    scored = Scored(rollouts=rollouts, rewards=[1.0] * 12, components={}, success=[None] * 12)
    batch = pack(scored, torch.ones(12), 0, keep_flat=True)
    policy = Policy(model, temperature=0.8, undefined=undefined, autocast_dtype=dtype)
    gap = (policy.frozen_logprobs(batch, 5) - batch.sampler_logprobs).abs()
    assert gap.max() < (1e-4 if dtype is None else 0.1)


def test_frozen_logprobs_do_not_depend_on_the_micro_batch(model: nn.Module, batch: TrainBatch) -> None:
    policy = Policy(model, temperature=1.0)
    whole = policy.frozen_logprobs(batch, 3)
    assert not whole.requires_grad and whole.shape == batch.tokens.shape
    for size in (1, 2):
        torch.testing.assert_close(policy.frozen_logprobs(batch, size), whole, rtol=1e-5, atol=1e-6)


def test_an_empty_batch_has_no_logprobs(model: nn.Module) -> None:
    scored = Scored(rollouts=ROLLOUTS, rewards=[1.0] * 3, components={}, success=[None] * 3)
    empty = pack(scored, torch.zeros(3), 0, keep_flat=False)
    assert Policy(model, temperature=1.0).frozen_logprobs(empty, 2).shape == (0, 0)


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_parameter_gradients_do_not_depend_on_the_cut(
    model: nn.Module, batch: TrainBatch, parts: int
) -> None:
    model = model.double()
    policy, loss = Policy(model, temperature=1.0), grpo_loss()
    model.zero_grad()
    for micro_batch in batch.split(3):
        loss(policy.logprobs(micro_batch)[0], micro_batch).loss.backward()
    whole = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    for micro_batch in batch.split(parts):
        loss(policy.logprobs(micro_batch)[0], micro_batch).loss.backward()
    for parameter, want in zip(model.parameters(), whole, strict=True):
        torch.testing.assert_close(parameter.grad, want, rtol=1e-6, atol=1e-8)


def test_lora_07_two_passes_are_equal_though_the_builder_has_dropout(batch: TrainBatch) -> None:
    from grpo.models import lora_smollm2

    torch.manual_seed(0)
    model = lora_smollm2(["q_proj", "v_proj"], **SIZES, lora_dropout=0.1).train()
    policy = Policy(model, temperature=1.0)
    first, second = policy.frozen_logprobs(batch, 3), policy.frozen_logprobs(batch, 3)
    assert torch.equal(first, second)
    output = grpo_loss()(first, batch.__class__(**{**_fields(batch), "old_logprobs": second}))
    assert output.maxima["ratio/max"].item() == pytest.approx(1.0, abs=1e-5)


def _fields(batch: TrainBatch) -> dict:
    return {name: getattr(batch, name) for name in batch.__dataclass_fields__}
