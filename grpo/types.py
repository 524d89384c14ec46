"""What passes between the stages of GRPO, as frozen dataclasses that check their own shapes.

Legend: P prompts, G samples of each, N = P * G sequences, T tokens of one sequence.
Lists until :func:`grpo.batching.pack`, tensors after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem: what is asked and what a reward needs to judge the answer.

    Attributes:
        id: unique within its dataset; stands in logs and samples.
        question: the problem's text, before any prompt template.
        answer: the reference answer, or None where only a verifier can judge.
        metadata: whatever else a reward needs (tests, a generator's entry, a level).
    """

    id: str
    question: str
    answer: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptBatch:
    """P prompts, ready for an engine.

    Attributes:
        prompt_ids: P ragged lists of token ids, never padded and never truncated.
        tasks: the P tasks behind them.
        group_ids: P numbers, unique in the batch; all samples of a prompt carry its number.
        prefills: P texts that the template already put at the start of the assistant's turn.
    """

    prompt_ids: list[list[int]]
    tasks: list[Task]
    group_ids: list[int]
    prefills: list[str]

    def __post_init__(self) -> None:
        _same_length(self, "prompt_ids", "tasks", "group_ids", "prefills")
        if any(not ids for ids in self.prompt_ids):
            raise ValueError("PromptBatch: a prompt without tokens")
        if len(set(self.group_ids)) != len(self.group_ids):
            raise ValueError("PromptBatch: group_ids must be unique")

    def __len__(self) -> int:
        return len(self.prompt_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How an engine samples.

    Attributes:
        temperature: divides the logits; 0 is greedy.
        top_k: keep the k most likely tokens (None: all).
        top_p: keep the smallest set of tokens whose probability reaches p (None: all).
        max_generated_tokens: the longest completion, stop token included.
        stop_ids: ids that end a completion; the one that was sampled stays in it.
    """

    max_generated_tokens: int
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    stop_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.max_generated_tokens < 1:
            raise ValueError(f"max_generated_tokens must be at least 1, got {self.max_generated_tokens}")
        if self.temperature < 0:
            raise ValueError(f"temperature must be 0 (greedy) or more, got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1], got {self.top_p}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """N sampled sequences, exactly as they were sampled.

    Attributes:
        prompt_ids: N lists of token ids.
        completion_ids: N lists of T_i token ids, the sampled stop token included.
        loss_mask: N lists of T_i flags; 1 where the policy sampled the token, 0 where an
            environment or a template wrote it. The only say on what is trained.
        sampler_logprobs: N lists of T_i float32 log-probabilities at the sampling temperature.
        finish_reasons: "stop" (a stop token was sampled) or "length" (cut at the limit).
        texts: the N completions decoded, without the stop token.
        group_ids: the number of each sequence's prompt.
        tasks, prefills: as in :class:`PromptBatch`, one per sequence.
        undefined_tokens: how many ids of each completion the tokenizer does not define.
        policy_version: the number of updates behind the weights that sampled them.
    """

    prompt_ids: list[list[int]]
    completion_ids: list[list[int]]
    loss_mask: list[list[int]]
    sampler_logprobs: list[list[float]]
    finish_reasons: list[FinishReason]
    texts: list[str]
    group_ids: list[int]
    tasks: list[Task]
    prefills: list[str]
    undefined_tokens: list[int]
    policy_version: int = 0

    def __post_init__(self) -> None:
        _same_length(
            self,
            *("prompt_ids", "completion_ids", "loss_mask", "sampler_logprobs", "finish_reasons"),
            *("texts", "group_ids", "tasks", "prefills", "undefined_tokens"),
        )
        rows = zip(self.completion_ids, self.loss_mask, self.sampler_logprobs, strict=True)
        for i, (ids, mask, logprobs) in enumerate(rows):
            if not len(ids) == len(mask) == len(logprobs):
                raise ValueError(
                    f"Rollouts: sequence {i} has {len(ids)} ids, {len(mask)} mask flags and "
                    f"{len(logprobs)} sampler_logprobs"
                )

    def __len__(self) -> int:
        return len(self.completion_ids)

    def samples(self) -> list[Sample]:
        """The N sequences as rewards see them."""
        return [
            Sample(
                task=self.tasks[i],
                text=self.prefills[i] + self.texts[i],
                num_tokens=len(self.completion_ids[i]),
                finish_reason=self.finish_reasons[i],
            )
            for i in range(len(self))
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One completion as a reward sees it.

    Attributes:
        task: the problem that was asked.
        text: the assistant's turn: the template's prefill and what was sampled, without the
            stop token. Tags that are special tokens stay in it.
        num_tokens: sampled tokens, the stop token included.
        finish_reason: "stop" or "length".
    """

    task: Task
    text: str
    num_tokens: int = 0
    finish_reason: FinishReason = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """Rollouts with what they earned.

    Attributes:
        rollouts: the N sequences.
        rewards: N weighted sums; None where a component abstained or failed.
        components: by name, N values before weighting (None: abstained or failed).
        success: N flags of the reward marked as success measure (None: not judged).
        errors: how many calls of a reward raised or returned no finite number.
    """

    rollouts: Rollouts
    rewards: list[float | None]
    components: dict[str, list[float | None]]
    success: list[bool | None]
    errors: int = 0

    def __post_init__(self) -> None:
        columns = {"rewards": self.rewards, "success": self.success, **self.components}
        for name, column in columns.items():
            if len(column) != len(self.rollouts):
                raise ValueError(f"Scored: {len(column)} values of {name} for {len(self.rollouts)} sequences")

    def __len__(self) -> int:
        return len(self.rollouts)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBatch:
    """B sequences as tensors, right-padded to L, and what the whole update divides by.

    Everything of shape [B, L] is aligned with the token it speaks of: ``policy_logprobs[b, t]``
    is log p(tokens[b, t] | tokens[b, :t]), meaningful where ``loss_mask[b, t]``.

    Attributes:
        tokens: [B, L] int64, prompt and completion.
        loss_mask: [B, L] bool, True on the tokens that are trained.
        lengths: [B] int64, real tokens of each row; what follows them is padding.
        advantages: [B] float32.
        sampler_logprobs: [B, L] float32, the engine's.
        num_sequences, num_tokens: sequences and trained tokens of the whole update, over all
            micro-batches and ranks, rows without gradient included. Never of this slice alone.
        old_logprobs: [B, L] float32 of the policy before the update; None: the policy itself,
            detached (exact while each batch is used for one update).
        ref_logprobs: [B, L] float32 of the reference policy, None without a KL term.
    """

    tokens: Tensor
    loss_mask: Tensor
    lengths: Tensor
    advantages: Tensor
    sampler_logprobs: Tensor
    num_sequences: float
    num_tokens: float
    old_logprobs: Tensor | None = None
    ref_logprobs: Tensor | None = None

    def __post_init__(self) -> None:
        shape = self.tokens.shape
        for name in ("loss_mask", "sampler_logprobs", "old_logprobs", "ref_logprobs"):
            value = getattr(self, name)
            if value is not None and value.shape != shape:
                raise ValueError(f"TrainBatch: {name} is {list(value.shape)}, tokens are {list(shape)}")
        for name in ("lengths", "advantages"):
            if getattr(self, name).shape != shape[:1]:
                raise ValueError(
                    f"TrainBatch: {name} is {list(getattr(self, name).shape)} for {shape[0]} rows"
                )

    def __len__(self) -> int:
        return self.tokens.shape[0]

    def with_logprobs(self, *, old: Tensor | None = None, ref: Tensor | None = None) -> TrainBatch:
        """The same batch with old and reference logprobs, [B, L] each."""
        return replace(self, old_logprobs=old, ref_logprobs=ref)

    def passes(self, size: int) -> int:
        """How many slices :meth:`split` makes."""
        return -(-len(self) // size)

    def split(self, size: int, at_least: int = 0) -> list[TrainBatch]:
        """Slices of at most ``size`` rows, each cut to its longest row; normalisers unchanged.

        When there are fewer than ``at_least``, slices follow in which nothing is trained: one row of
        one token. They let a rank take part in passes for which it has no work.
        """
        slices = [self._rows(slice(i, i + size)) for i in range(0, len(self), size)]
        return slices + [self._nothing()] * (at_least - len(slices))

    def _nothing(self) -> TrainBatch:
        def zeros(value: Tensor | None, *shape: int) -> Tensor | None:
            return None if value is None else value.new_zeros(shape)

        return replace(
            self,
            tokens=zeros(self.tokens, 1, 1),
            loss_mask=zeros(self.loss_mask, 1, 1),
            lengths=self.lengths.new_ones(1),
            advantages=zeros(self.advantages, 1),
            sampler_logprobs=zeros(self.sampler_logprobs, 1, 1),
            old_logprobs=zeros(self.old_logprobs, 1, 1),
            ref_logprobs=zeros(self.ref_logprobs, 1, 1),
        )

    def _rows(self, rows: slice) -> TrainBatch:
        width = int(self.lengths[rows].max())

        def cut(value: Tensor | None) -> Tensor | None:
            return None if value is None else value[rows, :width]

        return replace(
            self,
            tokens=cut(self.tokens),
            loss_mask=cut(self.loss_mask),
            lengths=self.lengths[rows],
            advantages=self.advantages[rows],
            sampler_logprobs=cut(self.sampler_logprobs),
            old_logprobs=cut(self.old_logprobs),
            ref_logprobs=cut(self.ref_logprobs),
        )

    def to(self, device: torch.device | str) -> TrainBatch:
        """The same batch on another device."""
        moved = {
            name: getattr(self, name).to(device)
            for name in self.__dataclass_fields__
            if isinstance(getattr(self, name), Tensor)
        }
        return replace(self, **moved)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOutput:
    """What a loss returns for one micro-batch.

    Attributes:
        loss: scalar; the sum over micro-batches is the loss of the update.
        sums: by metric name, (sum, count), so that micro-batches and ranks add up.
        maxima: by metric name, the largest value seen.
    """

    loss: Tensor
    sums: dict[str, tuple[Tensor, Tensor]]
    maxima: dict[str, Tensor]


def join_rollouts(parts: Sequence[Rollouts]) -> Rollouts:
    """Several rollouts as one, in order."""
    columns = [name for name in Rollouts.__dataclass_fields__ if name != "policy_version"]
    return Rollouts(
        policy_version=parts[0].policy_version,
        **{name: _chained(getattr(part, name) for part in parts) for name in columns},
    )


def join_scored(parts: Sequence[Scored]) -> Scored:
    """Several scored rollouts as one, in order; all were judged by the same rewards."""
    return Scored(
        rollouts=join_rollouts([part.rollouts for part in parts]),
        rewards=_chained(part.rewards for part in parts),
        components={name: _chained(part.components[name] for part in parts) for name in parts[0].components},
        success=_chained(part.success for part in parts),
        errors=sum(part.errors for part in parts),
    )


def _chained(lists: Iterable[list[Any]]) -> list[Any]:
    return [value for values in lists for value in values]


def _same_length(stage: object, *names: str) -> None:
    lengths = {name: len(getattr(stage, name)) for name in names}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{type(stage).__name__}: fields differ in length: {lengths}")


def mean_of_present(values: Sequence[float | None]) -> float | None:
    """Mean over the values that exist; None where there is none."""
    present = [v for v in values if v is not None]
    return sum(present) / len(present) if present else None
