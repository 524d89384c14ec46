"""Ids that a model can sample and its tokenizer does not know."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from grpo.models.tokenizers import Tokenizer


def undefined_token_mask(tokenizer: Tokenizer, model: nn.Module, device: torch.device) -> Tensor | None:
    """[V] bool, True where the tokenizer defines no token; None if it defines all.

    V is the number of logits: vocabularies are padded to round numbers, and some leave holes.
    """
    undefined = tokenizer.undefined_ids(model.tok_embeddings.num_embeddings)
    if not undefined:
        return None
    mask = torch.zeros(model.tok_embeddings.num_embeddings, dtype=torch.bool, device=device)
    mask[torch.tensor(undefined, device=device)] = True
    return mask
