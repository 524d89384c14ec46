"""Samples and rollouts with only what a test is about."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from grpo.types import Rollouts, Sample, Task


@pytest.fixture(scope="session")
def sample() -> Callable[..., Sample]:
    def make(text: str, answer: str | None = None, num_tokens: int = 1, **task: object) -> Sample:
        return Sample(
            task=Task(id="t0", question="?", answer=answer, **task), text=text, num_tokens=num_tokens
        )

    return make


@pytest.fixture(scope="session")
def rollouts() -> Callable[..., Rollouts]:
    def make(texts: Sequence[str], prefill: str = "", answer: str | None = None) -> Rollouts:
        n = len(texts)
        return Rollouts(
            prompt_ids=[[1]] * n,
            completion_ids=[[5, 6]] * n,
            loss_mask=[[1, 1]] * n,
            sampler_logprobs=[[-1.0, -1.0]] * n,
            finish_reasons=["stop"] * n,
            texts=list(texts),
            group_ids=[0] * n,
            tasks=[Task(id=f"task-{i}", question="?", answer=answer) for i in range(n)],
            prefills=[prefill] * n,
            undefined_tokens=[0] * n,
        )

    return make
