"""Which models a recipe takes, in what precision they lie, and that adapters stay apart."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torchtune.modules.peft import get_adapter_params

from grpo.checkpoint import StepCheckpointer
from grpo.config import ConfigError
from grpo.generation import NativeEngine
from grpo.models import read_hf_config
from grpo.models.adapters import load_peft_adapter
from grpo.policy import check_model, load_model
from grpo.types import SamplingParams
from tests.grpo.conftest import prompt_batch

FULL = {"_component_": "grpo.models.tiny"}
LORA = {
    "_component_": "grpo.models.lora_tiny",
    "lora_attn_modules": ["q_proj"],
    "lora_rank": 1,
    "lora_alpha": 1,
}
CPU = torch.device("cpu")


@pytest.mark.parametrize(("builder", "lora"), [(FULL, False), (LORA, True)])
def test_models_of_the_recipes_kind_pass(builder: dict, lora: bool) -> None:
    check_model(builder, lora=lora)


@pytest.mark.parametrize(
    ("builder", "lora", "told"),
    [
        (FULL, True, "grpo.models.tiny has no adapters; grpo_full_finetune"),
        (LORA, False, "grpo.models.lora_tiny has LoRA adapters; grpo_lora_finetune"),
        (FULL | {"attn_dropout": 0.1}, False, "has dropout 0.1, expected 0"),
        (LORA | {"lora_dropout": 0.05}, True, "has dropout 0.05, expected 0"),
        (
            {
                "_component_": "torchtune.models.llama3.lora_llama3",
                **{"lora_attn_modules": ["q_proj"], "apply_lora_to_output": True, "vocab_size": 8},
                **{
                    "num_layers": 1,
                    "num_heads": 2,
                    "num_kv_heads": 1,
                    "embed_dim": 8,
                    "max_seq_len": 8,
                    "lora_rank": 2,
                },
                "lora_alpha": 4,
            },
            True,
            "output.lora_a.weight has no name in PEFT's format",
        ),
    ],
)
def test_models_that_cannot_be_trained_are_refused(builder: dict, lora: bool, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        check_model(builder, lora=lora)


def test_trained_weights_are_float32_and_frozen_matrices_bf16() -> None:
    full = load_model(FULL, "tiny", device=CPU, dtype="bf16")
    assert {p.dtype for p in full.parameters()} == {torch.float32}
    lora = load_model(LORA, "tiny", device=CPU, dtype="bf16")
    adapters = get_adapter_params(lora)
    for name, parameter in lora.named_parameters():
        frozen_matrix = name not in adapters and parameter.ndim == 2
        assert parameter.dtype == (torch.bfloat16 if frozen_matrix else torch.float32), name
        assert parameter.requires_grad == (name in adapters)
    assert torch.get_default_dtype() == torch.float32


def base_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    adapters = get_adapter_params(model)
    return {n: p.detach().clone() for n, p in model.named_parameters() if n not in adapters}


def test_lora_02_the_base_is_bit_identical_after_many_syncs(tokenizer) -> None:
    model = load_model(LORA, "tiny", device=CPU, dtype="bf16")
    before = base_weights(model)
    engine = NativeEngine(
        model=model, tokenizer=tokenizer, forward_batch_size=4, seed=0, autocast_dtype=torch.bfloat16
    )
    for _ in range(5):
        with torch.no_grad():
            for parameter in get_adapter_params(model).values():
                parameter.add_(0.003)
        engine.update_weights(model)
        engine.generate(prompt_batch([5, 6]), SamplingParams(max_generated_tokens=2))
    after = base_weights(model)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_lora_03_a_small_delta_is_not_lost_in_the_bf16_grid(tmp_path: Path) -> None:
    model = load_model(LORA, "tiny", device=CPU, dtype="bf16")
    layer = model.layers[0].attn.q_proj
    with torch.no_grad():
        layer.weight.fill_(1.0)
        layer.lora_a.weight.fill_(1.0)
        layer.lora_b.weight.fill_(0.003)
    merged_in_bf16 = layer.weight + (layer.lora_b.weight @ layer.lora_a.weight).bfloat16()
    assert merged_in_bf16[0, 0].item() == 1.0  # what merging would have sampled from: the base
    StepCheckpointer("tiny", output_dir=str(tmp_path)).save(1, model, {}, "")
    saved = load_peft_adapter(tmp_path / "step_1", read_hf_config("tiny"))
    b, a = (saved[f"layers.0.attn.q_proj.lora_{side}.weight"] for side in "ba")
    effective = layer.weight.float() + b @ a
    assert effective[0, 0].item() == pytest.approx(1.003, abs=1e-4)
