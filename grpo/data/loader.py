"""Batches of prompts in a seeded order that can be stopped and resumed at any batch."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grpo.config.errors import ConfigError
from grpo.data.prompts import PromptTemplate, PromptTokenizer
from grpo.types import PromptBatch, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prompt:
    task: Task
    ids: list[int]
    prefill: str


class PromptLoader:
    """An endless stream of prompt batches, epoch after epoch.

    Every prompt is encoded once, when the loader is built. The order of an epoch is a function of the
    seed and the epoch alone, so that three numbers are the whole state: the epoch, the batches of it that
    were given out, and how many prompts were given out in all (which numbers the groups: each use of a
    prompt is a group of its own, however many batches are put together).

    There are no worker processes: nothing is left to do per batch but indexing, and a worker that fetches
    ahead would make the state that was saved differ from the batches that were used.

    A prompt is repeated for its samples by the engine, in place (0, 0, 1, 1, ...), and a batch is used for
    several epochs of updates as a whole; the loader gives each prompt once.

    Args:
        tasks: the problems.
        template: a task to prompt ids and prefill.
        tokenizer: given to the template.
        batch_size: prompts in a batch.
        max_prompt_tokens: longer prompts are dropped and counted in ``dropped_prompts``; none is cut.
        seed: of the order.
        shuffle: whether each epoch has an order of its own; otherwise it is the order of the tasks.
        drop_last: whether an epoch's last batch is left out when it is not full; otherwise it is smaller.

    Raises:
        ConfigError: no tasks, no prompt short enough, an impossible size, or fewer prompts than a batch
            with ``drop_last``.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        template: PromptTemplate,
        tokenizer: PromptTokenizer,
        *,
        batch_size: int,
        max_prompt_tokens: int,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = True,
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size: expected at least 1, got {batch_size}")
        if not tasks:
            raise ConfigError("dataset: it has no tasks")
        self._prompts = _encode(tasks, template, tokenizer, max_prompt_tokens)
        self.dropped_prompts = len(tasks) - len(self._prompts)
        if drop_last and len(self._prompts) < batch_size:
            dropped = f" ({self.dropped_prompts} too long ones dropped)" if self.dropped_prompts else ""
            raise ConfigError(
                f"batch_size: {batch_size} prompts a batch, but the dataset has {len(self._prompts)}"
                f"{dropped}; take a smaller batch, or drop_last=false"
            )
        self._batch_size = batch_size
        self._seed = seed
        self._shuffle = shuffle
        self._drop_last = drop_last
        self._epoch = 0
        self._batch = 0
        self._prompts_given = 0
        self._order = self._order_of(0)

    def __len__(self) -> int:
        """Prompts that are used, dropped ones not counted."""
        return len(self._prompts)

    @property
    def batches_per_epoch(self) -> int:
        """Batches of one pass over the prompts."""
        full, rest = divmod(len(self._prompts), self._batch_size)
        return full if self._drop_last or rest == 0 else full + 1

    def next_batch(self) -> PromptBatch:
        """The next batch; after an epoch's last one comes the first of the next epoch."""
        start = self._batch * self._batch_size
        chosen = [self._prompts[i] for i in self._order[start : start + self._batch_size]]
        first = self._prompts_given
        self._prompts_given += len(chosen)
        self._batch += 1
        if self._batch == self.batches_per_epoch:
            # The end of epoch e is the start of epoch e + 1: one position, one name for it.
            self._epoch, self._batch = self._epoch + 1, 0
            self._order = self._order_of(self._epoch)
        return PromptBatch(
            prompt_ids=[list(prompt.ids) for prompt in chosen],
            tasks=[prompt.task for prompt in chosen],
            group_ids=list(range(first, first + len(chosen))),
            prefills=[prompt.prefill for prompt in chosen],
        )

    def take(self, n: int) -> PromptBatch:
        """The next ``n`` batches as one, for gradient accumulation."""
        batches = [self.next_batch() for _ in range(n)]
        return PromptBatch(
            prompt_ids=[ids for batch in batches for ids in batch.prompt_ids],
            tasks=[task for batch in batches for task in batch.tasks],
            group_ids=[group for batch in batches for group in batch.group_ids],
            prefills=[prefill for batch in batches for prefill in batch.prefills],
        )

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands (JSON-safe), and what it must be loaded into."""
        return {
            "epoch": self._epoch,
            "batch": self._batch,
            "prompts_given": self._prompts_given,
            **self._identity(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Stand where the state was taken; the next batch is the one that would have come then.

        Raises:
            ConfigError: the state is of other data or settings, with which the order would be another one.
        """
        for key, value in self._identity().items():
            if state.get(key) != value:
                raise ConfigError(
                    f"cannot resume: the checkpoint's data position was taken with {key} {state.get(key)}, "
                    f"this run has {key} {value}"
                )
        self._epoch = state["epoch"]
        self._batch = state["batch"]
        self._prompts_given = state["prompts_given"]
        self._order = self._order_of(self._epoch)

    def _identity(self) -> dict[str, Any]:
        """What the meaning of a position depends on."""
        return {
            "seed": self._seed,
            "num_prompts": len(self._prompts),
            "batch_size": self._batch_size,
            "shuffle": self._shuffle,
            "drop_last": self._drop_last,
        }

    def _order_of(self, epoch: int) -> list[int]:
        order = list(range(len(self._prompts)))
        if self._shuffle:
            # Seeded with a text: seed 0 in epoch 1 must not be seed 1 in epoch 0.
            random.Random(f"prompt order, seed {self._seed}, epoch {epoch}").shuffle(order)
        return order


def _encode(
    tasks: Sequence[Task], template: PromptTemplate, tokenizer: PromptTokenizer, max_prompt_tokens: int
) -> list[_Prompt]:
    """The prompts that fit."""
    prompts = []
    shortest = None
    for task in tasks:
        ids, prefill = template(task, tokenizer)
        shortest = len(ids) if shortest is None else min(shortest, len(ids))
        if len(ids) <= max_prompt_tokens:
            prompts.append(_Prompt(task=task, ids=ids, prefill=prefill))
    if not prompts:
        raise ConfigError(
            f"max_prompt_tokens: all {len(tasks)} prompts are longer than {max_prompt_tokens} tokens "
            f"(the shortest has {shortest})"
        )
    return prompts
