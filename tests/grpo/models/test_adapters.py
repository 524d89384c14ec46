"""LoRA adapters as PEFT folders."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from torch import nn
from torchtune.models.qwen2 import lora_qwen2
from torchtune.modules.peft import get_adapter_params, set_trainable_params
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from grpo.config.errors import ConfigError
from grpo.models import load_peft_adapter, load_weights, lora_smollm2, read_hf_config, save_peft_adapter

HF_SHAPE = dict(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    tie_word_embeddings=True,
    rms_norm_eps=1e-6,
    initializer_range=0.2,
)
SHAPE = dict(
    vocab_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    embed_dim=32,
    intermediate_dim=48,
    max_seq_len=64,
    norm_eps=1e-6,
)
ALL_ATTN = ["q_proj", "k_proj", "v_proj", "output_proj"]
LORA = dict(lora_rank=4, lora_alpha=12)


@pytest.fixture(autouse=True)
def peft_without_torchao(monkeypatch: pytest.MonkeyPatch) -> None:
    """PEFT refuses to load anything beside a torchao older than 0.16, which torchtune needs."""
    monkeypatch.setattr("peft.tuners.lora.torchao.is_torchao_available", lambda: False)


def build_llama(folder: Path) -> nn.Module:
    LlamaForCausalLM(LlamaConfig(**HF_SHAPE)).save_pretrained(folder)
    return lora_smollm2(ALL_ATTN, True, **SHAPE, **LORA)


def build_qwen2(folder: Path) -> nn.Module:
    Qwen2ForCausalLM(Qwen2Config(rope_theta=1e6, **HF_SHAPE)).save_pretrained(folder)
    return lora_qwen2(ALL_ATTN, True, tie_word_embeddings=True, rope_base=1e6, **SHAPE, **LORA)


def trained_adapter(model: nn.Module) -> dict[str, torch.Tensor]:
    """The adapter's weights, with B as if it had been trained."""
    set_trainable_params(model, get_adapter_params(model))
    for name, parameter in model.named_parameters():
        if "lora_b" in name:
            nn.init.normal_(parameter, std=0.3)
    return {name: p.detach() for name, p in get_adapter_params(model).items()}


@pytest.mark.parametrize(
    ("build", "hf_class"), [(build_llama, LlamaForCausalLM), (build_qwen2, Qwen2ForCausalLM)]
)
def test_peft_gives_the_same_logits_and_the_way_back_is_exact(tmp_path: Path, build, hf_class) -> None:
    torch.manual_seed(0)
    base, out = tmp_path / "base", tmp_path / "adapter"
    out.mkdir()
    ours = build(base).eval()
    load_weights(ours, base)
    tokens = torch.randint(64, (2, 30))
    with torch.no_grad():
        before = ours(tokens)
        adapter = trained_adapter(ours)
        logits = ours(tokens)
    config = read_hf_config(base)
    save_peft_adapter(out, adapter, config, rank=4, alpha=12, base_model_path=base)

    theirs = PeftModel.from_pretrained(hf_class.from_pretrained(base), out).eval()
    with torch.no_grad():
        assert (theirs(tokens).logits - logits).abs().max() < 1e-4
    assert (logits - before).abs().max() > 0.1

    again = load_peft_adapter(out, config)
    assert again.keys() == adapter.keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in adapter.items())


def test_only_what_was_adapted_is_a_target(tmp_path: Path) -> None:
    base = tmp_path / "base"
    build_llama(base)
    adapter = trained_adapter(lora_smollm2(["q_proj", "output_proj"], **SHAPE, **LORA))
    save_peft_adapter(tmp_path, adapter, read_hf_config(base), rank=4, alpha=12, base_model_path="hub/name")
    theirs = PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained(base), tmp_path)
    (settings,) = theirs.peft_config.values()
    assert settings.target_modules == {"q_proj", "o_proj"}
    assert (settings.r, settings.lora_alpha) == (4, 12)
    assert settings.base_model_name_or_path == "hub/name"


def test_base_weights_and_other_ranks_are_refused(tmp_path: Path) -> None:
    build_llama(tmp_path)
    config = read_hf_config(tmp_path)
    model = lora_smollm2(["q_proj"], **SHAPE, **LORA)
    with pytest.raises(ValueError, match=r"tok_embeddings\.weight is no LoRA weight"):
        save_peft_adapter(tmp_path, model.state_dict(), config, rank=4, alpha=12, base_model_path="x")
    with pytest.raises(ValueError, match="has rank 4, expected 8"):
        save_peft_adapter(tmp_path, trained_adapter(model), config, rank=8, alpha=12, base_model_path="x")


def test_missing_adapter_is_one_clear_line(tmp_path: Path) -> None:
    build_llama(tmp_path)
    with pytest.raises(ConfigError, match=r"no adapter_model\.safetensors in"):
        load_peft_adapter(tmp_path, read_hf_config(tmp_path))
