"""Tokenizers: any ``tokenizer.json`` with its chat template, Llama 3's tiktoken file, Qwen 2.5's pair."""

from __future__ import annotations

from grpo.models.tokenizers.huggingface import HFTokenizer, hf_tokenizer
from grpo.models.tokenizers.protocol import Tokenizer
from grpo.models.tokenizers.torchtune_adapters import (
    TorchtuneTokenizer,
    llama3_tokenizer,
    qwen2_5_tokenizer,
)

__all__ = [
    "HFTokenizer",
    "Tokenizer",
    "TorchtuneTokenizer",
    "hf_tokenizer",
    "llama3_tokenizer",
    "qwen2_5_tokenizer",
]
