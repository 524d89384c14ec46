"""Models that torchtune lacks, tokenizers, and weights from and to Hugging Face folders."""

from __future__ import annotations

from grpo.models.adapters import load_peft_adapter, save_peft_adapter
from grpo.models.download import download_smollm2
from grpo.models.hf_layout import is_adapter_name, to_hf_state_dict
from grpo.models.locations import resolve_checkpoint_dir, tiny_model_dir
from grpo.models.smollm2 import (
    lora_smollm2,
    lora_smollm2_1_7b,
    lora_smollm2_135m,
    lora_smollm2_360m,
    smollm2,
    smollm2_1_7b,
    smollm2_135m,
    smollm2_360m,
)
from grpo.models.tiny_model import lora_tiny, tiny
from grpo.models.tokenizers import (
    HFTokenizer,
    Tokenizer,
    TorchtuneTokenizer,
    hf_tokenizer,
    llama3_tokenizer,
    qwen2_5_tokenizer,
)
from grpo.models.undefined import undefined_token_mask
from grpo.models.weights import (
    check_checkpoint_dir,
    load_hf_state_dict,
    load_weights,
    read_hf_config,
    save_hf_weights,
)

__all__ = [
    "HFTokenizer",
    "Tokenizer",
    "TorchtuneTokenizer",
    "check_checkpoint_dir",
    "download_smollm2",
    "hf_tokenizer",
    "is_adapter_name",
    "llama3_tokenizer",
    "load_hf_state_dict",
    "load_peft_adapter",
    "load_weights",
    "lora_smollm2",
    "lora_smollm2_135m",
    "lora_smollm2_1_7b",
    "lora_smollm2_360m",
    "lora_tiny",
    "qwen2_5_tokenizer",
    "read_hf_config",
    "resolve_checkpoint_dir",
    "save_hf_weights",
    "save_peft_adapter",
    "smollm2",
    "smollm2_135m",
    "smollm2_1_7b",
    "smollm2_360m",
    "tiny",
    "tiny_model_dir",
    "to_hf_state_dict",
    "undefined_token_mask",
]
