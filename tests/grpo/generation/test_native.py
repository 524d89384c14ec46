"""The native engine against a brute-force loop without cache, padding or batching."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from grpo.generation import NativeEngine
from grpo.generation.cache import KVCache
from grpo.types import PromptBatch, Rollouts, SamplingParams
from tests.grpo.conftest import VOCAB, prompt_batch

PROMPTS = prompt_batch([5, 6, 7], [9], [3, 4, 8, 11, 12])


def engine(model: nn.Module, tokenizer: object, **settings: object) -> NativeEngine:
    defaults = {"forward_batch_size": 64, "seed": 0}
    return NativeEngine(model=model, tokenizer=tokenizer, **defaults | settings)


def sampling(**settings: object) -> SamplingParams:
    return SamplingParams(**{"max_generated_tokens": 8, "stop_ids": (2,)} | settings)


def greedy_by_hand(model: nn.Module, prompt: list[int], max_tokens: int, stop: int) -> list[int]:
    """Every token from a full forward pass of the one sequence."""
    ids = list(prompt)
    with torch.no_grad():
        while len(ids) < len(prompt) + max_tokens and (len(ids) == len(prompt) or ids[-1] != stop):
            ids.append(model(torch.tensor([ids]))[0, -1].argmax().item())
    return ids[len(prompt) :]


def test_greedy_equals_full_forward_passes(model: nn.Module, tokenizer) -> None:
    rollouts = engine(model, tokenizer).generate(PROMPTS, sampling(temperature=0.0))
    for prompt, completion in zip(PROMPTS.prompt_ids, rollouts.completion_ids, strict=True):
        assert completion == greedy_by_hand(model, prompt, 8, stop=2)


def test_greedy_with_adapters_equals_full_forward_passes(lora_model: nn.Module, tokenizer) -> None:
    with torch.no_grad():
        for name, parameter in lora_model.named_parameters():
            if "lora_b" in name:
                parameter.normal_(std=0.3, generator=torch.Generator().manual_seed(1))
    rollouts = engine(lora_model, tokenizer).generate(PROMPTS, sampling(temperature=0.0))
    for prompt, completion in zip(PROMPTS.prompt_ids, rollouts.completion_ids, strict=True):
        assert completion == greedy_by_hand(lora_model, prompt, 8, stop=2)


def test_sampler_logprobs_are_those_of_a_full_forward_pass(model: nn.Module, tokenizer) -> None:
    params = sampling(temperature=0.7, top_k=20, top_p=0.9)
    rollouts = engine(model, tokenizer).generate(PROMPTS, params, num_samples=3)
    for prompt, completion, logprobs in zip(
        rollouts.prompt_ids, rollouts.completion_ids, rollouts.sampler_logprobs, strict=True
    ):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + completion]))[0, len(prompt) - 1 : -1]
        want = (logits / 0.7).log_softmax(-1).gather(-1, torch.tensor(completion)[:, None])[:, 0]
        assert logprobs == pytest.approx(want.tolist(), abs=1e-4)


@pytest.mark.parametrize("forward_batch_size", [1, 2, 4, 5, 64])
def test_samples_do_not_depend_on_how_they_are_batched(
    model: nn.Module, tokenizer, forward_batch_size: int
) -> None:
    def sample(size: int) -> Rollouts:
        return engine(model, tokenizer, forward_batch_size=size).generate(PROMPTS, sampling(), num_samples=4)

    assert sample(forward_batch_size).completion_ids == sample(64).completion_ids


def test_groups_stand_side_by_side_and_differ(model: nn.Module, tokenizer) -> None:
    rollouts = engine(model, tokenizer).generate(PROMPTS, sampling(), num_samples=3)
    assert rollouts.group_ids == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert rollouts.prompt_ids[3:6] == [[9]] * 3
    assert len({tuple(ids) for ids in rollouts.completion_ids}) > 6


class CountingEngine:
    """Counts the rows of every pass by watching the embedding."""

    def __init__(self, model: nn.Module) -> None:
        self.passes: list[tuple[int, int]] = []
        model.tok_embeddings.register_forward_hook(
            lambda _, inputs, __: self.passes.append(tuple(inputs[0].shape))
        )


def test_each_prompt_runs_once_and_finished_rows_leave(model: nn.Module, tokenizer) -> None:
    count = CountingEngine(model)
    # about a third of the vocabulary stops, so that rows leave at different steps
    params = sampling(stop_ids=tuple(range(0, VOCAB, 3)), max_generated_tokens=20)
    rollouts = engine(model, tokenizer).generate(PROMPTS, params, num_samples=4)
    lengths = [len(ids) for ids in rollouts.completion_ids]
    assert len(set(lengths)) > 2
    assert count.passes[0] == (3, 5)  # three prompts, not twelve
    living = [sum(length > step for length in lengths) for step in range(1, max(lengths))]
    assert count.passes[1:] == [(rows, 1) for rows in living]


def test_large_groups_are_decoded_in_parts_of_one_prefill(model: nn.Module, tokenizer) -> None:
    count = CountingEngine(model)
    params = sampling(max_generated_tokens=2, stop_ids=())
    engine(model, tokenizer, forward_batch_size=2).generate(prompt_batch([5, 6]), params, num_samples=5)
    assert count.passes == [(1, 2), (2, 1), (2, 1), (1, 1)]


def test_gen_11_a_short_batch_runs_in_the_chunks_it_needs(model: nn.Module, tokenizer) -> None:
    count = CountingEngine(model)
    params = sampling(max_generated_tokens=1)
    engine(model, tokenizer, forward_batch_size=2).generate(PROMPTS, params)
    assert [rows for rows, _ in count.passes] == [2, 1]


def test_gen_04_and_14_ids_are_as_sampled_and_text_has_no_stop_token(model: nn.Module, tokenizer) -> None:
    rollouts = engine(model, tokenizer).generate(
        PROMPTS, sampling(stop_ids=(2, 17, 30), max_generated_tokens=6), num_samples=16
    )
    assert set(rollouts.finish_reasons) == {"stop", "length"}
    for ids, text, reason in zip(
        rollouts.completion_ids, rollouts.texts, rollouts.finish_reasons, strict=True
    ):
        body = ids[:-1] if reason == "stop" else ids
        assert (ids[-1] in (2, 17, 30)) == (reason == "stop")
        assert not {2, 17, 30} & set(body)
        assert text == " ".join(map(str, body))
        assert reason == "stop" or len(ids) == 6


def test_gen_13_truncation_is_the_finish_reason_not_the_width(model: nn.Module, tokenizer) -> None:
    # one row stops at the very last token that is allowed: it is as long as the cut ones, and finished
    rollouts = engine(model, tokenizer).generate(
        PROMPTS, sampling(stop_ids=tuple(range(0, VOCAB, 4)), max_generated_tokens=3), num_samples=20
    )
    full = [
        r for ids, r in zip(rollouts.completion_ids, rollouts.finish_reasons, strict=True) if len(ids) == 3
    ]
    assert set(full) == {"stop", "length"}


def test_gen_05_stop_tokens_in_the_prompt_do_not_stop(model: nn.Module, tokenizer) -> None:
    rollouts = engine(model, tokenizer).generate(prompt_batch([1, 2, 5, 2]), sampling(), num_samples=4)
    assert all(rollouts.completion_ids)
    assert rollouts.prompt_ids[0] == [1, 2, 5, 2]
    assert max(map(len, rollouts.completion_ids)) > 1


def test_gen_17_seeds_give_streams_of_their_own_that_survive_a_resume(model: nn.Module, tokenizer) -> None:
    first, second = (engine(model, tokenizer, seed=seed) for seed in (42, 43))
    draws = [e.generate(PROMPTS, sampling(), 4).completion_ids for e in (first, second)]
    assert draws[0] != draws[1]
    states = [e.state_dict() for e in (first, second)]
    after = [e.generate(PROMPTS, sampling(), 4).completion_ids for e in (first, second)]
    assert after[0] != after[1] and after[0] != draws[0]
    for state, want in zip(states, after, strict=True):
        resumed = engine(model, tokenizer, seed=0)
        resumed.load_state_dict(state)
        assert resumed.generate(PROMPTS, sampling(), 4).completion_ids == want


def test_greedy_draws_nothing_from_the_generator(model: nn.Module, tokenizer) -> None:
    one = engine(model, tokenizer)
    before = one.state_dict()["generator"].clone()
    one.generate(PROMPTS, sampling(temperature=0.0))
    assert torch.equal(one.state_dict()["generator"], before)


def test_gen_10_undefined_ids_decode_to_nothing_and_are_counted(model: nn.Module, number_tokenizer) -> None:
    tokenizer = number_tokenizer(defined=20)
    rollouts = engine(model, tokenizer).generate(PROMPTS, sampling(stop_ids=()), num_samples=8)
    undefined = [sum(token >= 20 for token in ids) for ids in rollouts.completion_ids]
    assert sum(undefined) > 0
    assert rollouts.undefined_tokens == undefined
    assert all(int(number) < 20 for text in rollouts.texts for number in text.split())


def test_gen_10_masked_undefined_ids_are_never_sampled(model: nn.Module, number_tokenizer) -> None:
    undefined = torch.arange(VOCAB) >= 20
    rollouts = engine(model, number_tokenizer(defined=20), undefined=undefined).generate(
        PROMPTS, sampling(stop_ids=()), num_samples=8
    )
    assert max(token for ids in rollouts.completion_ids for token in ids) < 20
    assert sum(rollouts.undefined_tokens) == 0


def test_versions_are_stamped_and_foreign_weights_refused(model: nn.Module, tokenizer) -> None:
    one = engine(model, tokenizer)
    one.update_weights(model)
    one.update_weights(model)
    assert one.generate(PROMPTS, sampling()).policy_version == 2
    with pytest.raises(ValueError, match="built with"):
        one.update_weights(nn.Linear(1, 1))


def test_training_mode_is_put_back(model: nn.Module, tokenizer) -> None:
    model.train()
    engine(model, tokenizer).generate(PROMPTS, sampling())
    assert model.training


def test_cache_grows_past_its_first_allocation() -> None:
    cache, seen = KVCache(1, visible=None), []
    generator = torch.Generator().manual_seed(0)
    for _ in range(150):
        keys = torch.randn(2, 1, 1, 4, generator=generator)
        seen.append(keys)
        stored, _ = cache.append(0, keys, keys)
        cache.advance(1)
    assert torch.equal(stored, torch.cat(seen, dim=2))


def test_empty_prompts_are_refused() -> None:
    with pytest.raises(ValueError, match="without tokens"):
        PromptBatch(prompt_ids=[[]], tasks=PROMPTS.tasks[:1], group_ids=[0], prefills=[""])
