"""SmolLM2's builders against transformers' Llama."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from grpo.config.errors import ConfigError
from grpo.models import (
    hf_tokenizer,
    load_weights,
    lora_smollm2,
    lora_smollm2_135m,
    smollm2,
    smollm2_1_7b,
    smollm2_135m,
    smollm2_360m,
)

SHAPE = dict(num_layers=3, num_heads=6, num_kv_heads=2, embed_dim=96, intermediate_dim=160, vocab_size=512)


def small_hf_folder(folder: Path) -> LlamaForCausalLM:
    """A random Llama of SmolLM2's architecture, saved by transformers."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=96,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=256,
        rms_norm_eps=1e-5,
        rope_theta=100_000.0,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    return model


def real_folders() -> list[str]:
    """The real SmolLM2-135M, where an environment variable says that it is there."""
    return [os.environ["GRPO_SMOLLM2_DIR"]] if "GRPO_SMOLLM2_DIR" in os.environ else []


def largest_difference(ours: torch.nn.Module, theirs: LlamaForCausalLM, tokens: torch.Tensor) -> float:
    with torch.no_grad():
        return (ours(tokens) - theirs(tokens).logits).abs().max().item()


def random_tokens() -> torch.Tensor:
    return torch.randint(512, (3, 60), generator=torch.Generator().manual_seed(1))


def test_logits_equal_transformers(tmp_path: Path) -> None:
    theirs = small_hf_folder(tmp_path)
    ours = smollm2(max_seq_len=64, rope_base=100_000, **SHAPE).eval()
    load_weights(ours, tmp_path)
    assert largest_difference(ours, theirs, random_tokens()) < 1e-4


def test_logits_differ_under_another_rotary_base(tmp_path: Path) -> None:
    theirs = small_hf_folder(tmp_path)
    right = smollm2(max_seq_len=64, rope_base=100_000, **SHAPE).eval()
    load_weights(right, tmp_path)
    wrong = smollm2(max_seq_len=64, rope_base=10_000, **SHAPE).eval()
    wrong.load_state_dict(right.state_dict())
    assert largest_difference(wrong, theirs, random_tokens()) > 1e-2


if real_folders():

    def test_logits_of_the_real_weights_equal_transformers() -> None:
        (folder,) = real_folders()
        theirs = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        ours = smollm2_135m(max_seq_len=64).eval()
        load_weights(ours, folder)
        # Ordinary text: for random ids logits reach 34, where fp32 itself is 1e-4 away from fp64.
        text = "<|im_start|>user\nWhat is 12 + 30?<|im_end|>\n<|im_start|>assistant\n"
        tokens = torch.tensor([hf_tokenizer(folder).encode(text)])
        assert largest_difference(ours, theirs, tokens) < 1e-4


def test_published_parameter_counts() -> None:
    with torch.device("meta"):
        counts = [
            sum(p.numel() for p in build().parameters())
            for build in (smollm2_135m, smollm2_360m, smollm2_1_7b)
        ]
    assert counts == [134_515_008, 361_821_120, 1_711_376_384]


def test_lora_starts_as_the_base_model_and_adapts_what_is_named(tmp_path: Path) -> None:
    theirs = small_hf_folder(tmp_path)
    lora = dict(lora_rank=4, lora_alpha=8)
    ours = lora_smollm2(["q_proj", "v_proj"], True, max_seq_len=64, rope_base=100_000, **SHAPE, **lora).eval()
    load_weights(ours, tmp_path)
    assert largest_difference(ours, theirs, random_tokens()) < 1e-4
    adapted = {
        name.split(".lora_")[0].split(".", 2)[2] for name, _ in ours.named_parameters() if "lora_" in name
    }
    assert adapted == {"attn.q_proj", "attn.v_proj", "mlp.w1", "mlp.w2", "mlp.w3"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(lora_attn_modules=["q_prj"]), "'q_prj' (did you mean 'q_proj'?)"),
        (dict(lora_attn_modules="q_proj"), "must be a list"),
        (dict(lora_attn_modules=[]), "nothing to train"),
        (dict(lora_attn_modules=["q_proj"], lora_rank=0), "lora_rank must be at least 1, got 0"),
        (dict(lora_attn_modules=["q_proj"], lora_dropout=1.0), "lora_dropout must lie in [0, 1), got 1.0"),
        (dict(lora_attn_modules=["q_proj"], max_seq_len=0), "max_seq_len must be at least 1, got 0"),
    ],
)
def test_bad_builder_arguments_are_refused_before_building(arguments: dict, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        lora_smollm2_135m.check(**arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
