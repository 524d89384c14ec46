"""Batched sampling with the policy's own modules: no copy of the weights, no other library."""

from __future__ import annotations

import hashlib
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from grpo.batching import chunks, left_pad, position_ids
from grpo.distributed import WHOLE, WeightAccess
from grpo.generation.cache import KVCache
from grpo.generation.decode import hidden_states
from grpo.generation.sampling import sample_tokens
from grpo.types import PromptBatch, Rollouts, SamplingParams


class Decoder(Protocol):
    """The part of a tokenizer that an engine needs."""

    pad_id: int

    def decode(self, ids: list[int]) -> str: ...

    def is_defined(self, token_id: int) -> bool: ...


class NativeEngine:
    """Samples from a torchtune decoder.

    A prompt runs through the model once; its cache is shared out to its samples. Sequences that
    finish leave the batch, so a step costs what its living rows cost, and none is spent on a
    batch that has ended.

    Args:
        model: the policy itself: an update of its parameters is an update of the engine.
        tokenizer: pads and decodes.
        forward_batch_size: most sequences decoded together.
        seed: of the engine's own generator.
        undefined: [V] bool, ids that must not be sampled; None allows all.
        autocast_dtype: run matrix products in this type, as the trainer does; None leaves them.
        device: where to sample; None: where the model is.
        weights: how the parameters of a sharded model are reached.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        tokenizer: Decoder,
        forward_batch_size: int,
        seed: int,
        undefined: Tensor | None = None,
        autocast_dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        weights: WeightAccess = WHOLE,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._forward_batch_size = forward_batch_size
        self._undefined = undefined
        self._autocast_dtype = autocast_dtype
        self._device = device or next(model.parameters()).device
        self._weights = weights
        self._seed = seed
        # On the CPU, so that a seed means the same draws on every device.
        self._generator = torch.Generator().manual_seed(seed)
        self._policy_version = 0

    @torch.no_grad()
    def generate(self, prompts: PromptBatch, sampling: SamplingParams, num_samples: int = 1) -> Rollouts:
        """N = P * num_samples rollouts, those of one prompt side by side; see :class:`Engine`."""
        total = len(prompts) * num_samples
        uniforms = None
        if sampling.temperature > 0:
            shape = (total, sampling.max_generated_tokens)
            uniforms = torch.rand(shape, generator=self._generator, dtype=torch.float64)
        completions: list[list[int]] = []
        logprobs: list[list[float]] = []
        was_training = self._model.training
        self._model.eval()
        try:
            autocast = self._autocast_dtype is not None
            with (
                torch.autocast(self._device.type, self._autocast_dtype, enabled=autocast),
                self._weights.sampling(),
            ):
                # Whole groups share a chunk where they fit; larger groups are decoded in parts.
                for block in chunks(len(prompts), max(1, self._forward_batch_size // num_samples)):
                    first_logits, cache, lengths = self._prefill(prompts.prompt_ids[block])
                    owners = torch.arange(len(lengths)).repeat_interleave(num_samples)
                    for part in chunks(len(owners), self._forward_batch_size):
                        rows = owners[part].to(self._device)
                        start = block.start * num_samples + part.start
                        draws = None if uniforms is None else uniforms[start : start + len(rows)]
                        ids, lps = self._decode(
                            first_logits[rows], cache.rows(rows), lengths[rows], sampling, draws
                        )
                        completions += ids
                        logprobs += lps
        finally:
            self._model.train(was_training)
        return self._rollouts(prompts, num_samples, completions, logprobs, sampling.stop_ids)

    def update_weights(self, model: nn.Module) -> None:
        """Count an update; the engine reads the policy's parameters where they are.

        Raises:
            ValueError: if ``model`` is not the model that the engine was built with.
        """
        if model is not self._model:
            raise ValueError("NativeEngine samples from the model it was built with")
        self._policy_version += 1

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self._generator.get_state(), "policy_version": self._policy_version}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._generator.set_state(state["generator"])
        self._policy_version = state["policy_version"]

    def reseed(self, number: int) -> None:
        """See :class:`Engine`."""
        digest = hashlib.sha256(f"sampling, seed {self._seed}, from {number}".encode()).digest()
        self._generator.manual_seed(int.from_bytes(digest[:4]))

    def _prefill(self, prompt_ids: list[list[int]]) -> tuple[Tensor, KVCache, Tensor]:
        """Logits after each prompt [P, V], the prompts' cache, and their lengths [P]."""
        tokens, mask = left_pad(prompt_ids, self._tokenizer.pad_id)
        tokens, mask = tokens.to(self._device), mask.to(self._device)
        cache = KVCache(len(self._model.layers), visible=None if mask.all() else mask)
        hidden = hidden_states(self._model, tokens, position_ids(mask), cache, self._weights)
        return self._model.output(hidden[:, -1]), cache, mask.sum(-1)

    def _decode(
        self,
        logits: Tensor,
        cache: KVCache,
        positions: Tensor,
        sampling: SamplingParams,
        uniforms: Tensor | None,
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Sample B completions; ``logits`` [B, V] and ``positions`` [B] are those of their first token."""
        ids: list[list[int]] = [[] for _ in range(len(logits))]
        logprobs: list[list[float]] = [[] for _ in range(len(logits))]
        living = torch.arange(len(logits))
        stop_ids = torch.tensor(sampling.stop_ids, dtype=torch.long, device=self._device)
        for step in range(sampling.max_generated_tokens):
            draws = None if uniforms is None else uniforms[living, step].to(self._device)
            tokens, token_logprobs = sample_tokens(logits, sampling, draws, self._undefined)
            for row, token, logprob in zip(
                living.tolist(), tokens.tolist(), token_logprobs.tolist(), strict=True
            ):
                ids[row].append(token)
                logprobs[row].append(logprob)
            going_on = (~torch.isin(tokens, stop_ids)).nonzero()[:, 0]
            if len(going_on) == 0 or step + 1 == sampling.max_generated_tokens:
                break
            if len(going_on) < len(tokens):
                cache, tokens, positions = cache.rows(going_on), tokens[going_on], positions[going_on]
                living = living[going_on.cpu()]
            hidden = hidden_states(self._model, tokens[:, None], positions[:, None], cache, self._weights)
            logits = self._model.output(hidden[:, -1])
            positions = positions + 1
        return ids, logprobs

    def _rollouts(
        self,
        prompts: PromptBatch,
        num_samples: int,
        completions: list[list[int]],
        logprobs: list[list[float]],
        stop_ids: tuple[int, ...],
    ) -> Rollouts:
        stopped = [ids[-1] in stop_ids for ids in completions]
        owners = [i for i in range(len(prompts)) for _ in range(num_samples)]
        return Rollouts(
            prompt_ids=[prompts.prompt_ids[i] for i in owners],
            completion_ids=completions,
            loss_mask=[[1] * len(ids) for ids in completions],
            sampler_logprobs=logprobs,
            finish_reasons=["stop" if s else "length" for s in stopped],
            texts=[
                self._tokenizer.decode(ids[:-1] if s else ids)
                for ids, s in zip(completions, stopped, strict=True)
            ],
            group_ids=[prompts.group_ids[i] for i in owners],
            tasks=[prompts.tasks[i] for i in owners],
            prefills=[prompts.prefills[i] for i in owners],
            undefined_tokens=[
                sum(not self._tokenizer.is_defined(token) for token in ids) for ids in completions
            ],
            policy_version=self._policy_version,
        )
