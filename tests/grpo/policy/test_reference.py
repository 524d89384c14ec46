"""The reference is the policy that training began with, and leaves no trace."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchtune.modules.peft import LoRALinear, get_adapter_params, set_trainable_params

from grpo.policy import Reference, adapters_off
from grpo.policy.reference import parameters_as

TOKENS = torch.tensor([[5, 6, 7, 8]])


def one_by_one_lora(weight: float, b_times_a: float) -> LoRALinear:
    """y = (weight + b_times_a) x, with the adapter in (A, B)."""
    layer = LoRALinear(1, 1, rank=1, alpha=1.0)
    with torch.no_grad():
        layer.weight.fill_(weight)
        layer.lora_a.weight.fill_(1.0)
        layer.lora_b.weight.fill_(b_times_a)
    set_trainable_params(layer, get_adapter_params(layer))
    return layer


def test_lora_01_reference_is_the_starting_policy_with_its_adapter() -> None:
    layer, x = one_by_one_lora(1.0, 0.5), torch.tensor([[2.0]])
    reference = Reference(layer)
    assert layer(x).item() == 3.0
    with reference():
        assert layer(x).item() == 3.0
    with torch.no_grad():
        layer.lora_b.weight.fill_(9.0)
    with reference():
        assert layer(x).item() == 3.0
    assert layer(x).item() == 20.0


def test_lora_04_reference_does_not_contain_what_training_added() -> None:
    layer, x = one_by_one_lora(1.0, 0.0), torch.tensor([[2.0]])
    reference = Reference(layer)
    with torch.no_grad():
        layer.lora_b.weight.fill_(0.5)
    assert layer(x).item() == 3.0
    with reference():
        assert layer(x).item() == 2.0


def test_lora_05_states_are_restored_after_an_exception() -> None:
    model = nn.Sequential(one_by_one_lora(1.0, 0.5), one_by_one_lora(1.0, 0.5))
    model[1].disabled = True
    trainable = [p.requires_grad for p in model.parameters()]
    with pytest.raises(RuntimeError, match="inside"), adapters_off(model):
        assert [m.disabled for m in model] == [True, True]
        raise RuntimeError("inside")
    assert [m.disabled for m in model] == [False, True]
    assert [p.requires_grad for p in model.parameters()] == trainable


def test_lora_05_nested_contexts_restore_the_outer_state() -> None:
    model = nn.Sequential(one_by_one_lora(1.0, 0.5))
    with adapters_off(model):
        with adapters_off(model):
            pass
        assert model[0].disabled
    assert not model[0].disabled


def test_lora_06_fully_trained_modules_are_swapped_too() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = one_by_one_lora(1.0, 0.0), nn.Linear(1, 1, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(x))

    model, x = Model(), torch.tensor([[2.0]])
    with torch.no_grad():
        model.head.weight.fill_(1.0)
    reference = Reference(model)
    with torch.no_grad():
        model.head.weight.fill_(1.5)
        model.body.lora_b.weight.fill_(1.0)
    with reference():
        assert model(x).item() == 2.0
    assert model(x).item() == 6.0


def test_swapped_parameters_come_back_after_an_exception() -> None:
    layer = nn.Linear(1, 1, bias=False)
    trained = layer.weight.detach().clone()
    with pytest.raises(RuntimeError, match="inside"), parameters_as(layer, {"weight": torch.zeros(1, 1)}):
        assert layer.weight.item() == 0
        raise RuntimeError("inside")
    assert torch.equal(layer.weight, trained)


def test_full_finetuning_keeps_a_frozen_copy(model: nn.Module) -> None:
    before = model(TOKENS).detach()
    reference = Reference(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05)
    moved = model(TOKENS).detach()
    with reference():
        assert torch.equal(model(TOKENS), before)
    assert torch.equal(model(TOKENS), moved) and not torch.allclose(moved, before)


def test_fresh_adapters_need_no_memory_and_equal_the_base(lora_model: nn.Module) -> None:
    set_trainable_params(lora_model, get_adapter_params(lora_model))
    before = lora_model(TOKENS).detach()
    reference = Reference(lora_model)
    assert not reference._initial
    with torch.no_grad():
        for name, parameter in lora_model.named_parameters():
            if "lora_b" in name:
                parameter.fill_(0.1)
    assert not torch.allclose(lora_model(TOKENS), before)
    with reference():
        torch.testing.assert_close(lora_model(TOKENS), before)


def test_gradients_still_reach_the_policy_after_a_reference_pass(model: nn.Module) -> None:
    reference = Reference(model)
    with reference():
        assert not model(TOKENS).requires_grad
    model(TOKENS).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
