"""Tasks, prompt templates, and the loader that makes batches of them."""

from __future__ import annotations

from grpo.data.addition import addition_dataset
from grpo.data.gsm8k import gsm8k_dataset
from grpo.data.jsonl import jsonl_dataset
from grpo.data.loader import PromptLoader
from grpo.data.procedural import reasoning_gym_dataset
from grpo.data.prompts import ChatPrompt, PromptTemplate, RawPrompt, ThinkAnswerPrompt

__all__ = [
    "ChatPrompt",
    "PromptLoader",
    "PromptTemplate",
    "RawPrompt",
    "ThinkAnswerPrompt",
    "addition_dataset",
    "gsm8k_dataset",
    "jsonl_dataset",
    "reasoning_gym_dataset",
]
