"""A rank that is alone, and a small model to cut into shares."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from grpo.distributed import Ranks, start_ranks


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    """The only rank, with a process group as a recipe without torchrun has it."""
    monkeypatch.delenv("RANK", raising=False)
    ranks = start_ranks("cpu")
    yield ranks
    ranks.close()


class Stack(nn.Module):
    """Layers between an embedding and a head of one row, which two ranks cannot cut evenly."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.layers = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(2))
        self.head = nn.Linear(4, 1, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens)
        for layer in self.layers:
            h = layer(h).tanh()
        return self.head(h).sum(-1)


# The names of its parameters, and how many numbers they hold.
STACK = {"embed.weight", "layers.0.weight", "layers.1.weight", "head.weight"}
STACK_SIZE = 7 * 4 + 2 * 4 * 4 + 4


def stack() -> Stack:
    """The same weights in every process."""
    torch.manual_seed(3)
    return Stack()


def gathered(model: nn.Module) -> set[str]:
    """Names of the parameters that are whole on this rank."""
    return {name for name, value in model.named_parameters() if not isinstance(value, DTensor)}
