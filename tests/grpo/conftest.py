"""Small random models and hand-made rollouts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from grpo.models import lora_smollm2, smollm2
from grpo.types import PromptBatch, Rollouts, Task

VOCAB = 40
SIZES = dict(
    vocab_size=VOCAB,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    embed_dim=32,
    intermediate_dim=48,
    max_seq_len=64,
)


class NumberTokenizer:
    """Decodes an id to its number; ids from ``defined`` on are undefined."""

    pad_id = 0
    stop_ids = (2,)

    def __init__(self, defined: int = VOCAB) -> None:
        self.defined = defined

    def decode(self, ids: list[int]) -> str:
        return " ".join(str(i) for i in ids if i < self.defined)

    def is_defined(self, token_id: int) -> bool:
        return token_id < self.defined

    def undefined_ids(self, num_logits: int) -> list[int]:
        return list(range(self.defined, num_logits))


def sharpen(model: nn.Module) -> nn.Module:
    """Weights that give predictions which differ clearly by context, and are not certain."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                parameter.mul_(0.2 if "tok_embeddings" in name else 3)
    return model


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return sharpen(smollm2(**SIZES)).eval()


@pytest.fixture
def lora_model() -> nn.Module:
    """Adapters on all attention projections and the MLP, B at zero as after a fresh start."""
    torch.manual_seed(0)
    return sharpen(
        lora_smollm2(["q_proj", "k_proj", "v_proj", "output_proj"], True, **SIZES, lora_rank=4, lora_alpha=8)
    ).eval()


@pytest.fixture
def tokenizer() -> NumberTokenizer:
    return NumberTokenizer()


@pytest.fixture
def number_tokenizer() -> type[NumberTokenizer]:
    return NumberTokenizer


def prompt_batch(*prompts: list[int]) -> PromptBatch:
    return PromptBatch(
        prompt_ids=list(prompts),
        tasks=[Task(id=str(i), question="?", answer="7") for i in range(len(prompts))],
        group_ids=list(range(len(prompts))),
        prefills=[""] * len(prompts),
    )


def make_rollouts(
    prompts: list[list[int]],
    completions: list[list[int]],
    group_ids: list[int] | None = None,
    **fields: object,
) -> Rollouts:
    """Rollouts of given ids; everything else is filled in plainly."""
    n = len(prompts)
    settings: dict[str, object] = {
        "prompt_ids": prompts,
        "completion_ids": completions,
        "loss_mask": [[1] * len(ids) for ids in completions],
        "sampler_logprobs": [[-1.0] * len(ids) for ids in completions],
        "finish_reasons": ["stop"] * n,
        "texts": ["text"] * n,
        "group_ids": group_ids or [0] * n,
        "tasks": [Task(id="t", question="?", answer="7")] * n,
        "prefills": [""] * n,
        "undefined_tokens": [0] * n,
    }
    return Rollouts(**settings | fields)
