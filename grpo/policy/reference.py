"""The reference policy: what the policy was when training began."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torchtune.modules.peft import get_adapter_params

from grpo.models.shares import share_of, whole_of


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """Run the base model alone; every adapter is put back to what it was, on an exception too."""
    modules = [m for m in model.modules() if hasattr(m, "adapter_params") and hasattr(m, "disabled")]
    before = [m.disabled for m in modules]
    try:
        for module in modules:
            module.disabled = True
        yield
    finally:
        for module, disabled in zip(modules, before, strict=True):
            module.disabled = disabled


@contextmanager
def parameters_as(model: nn.Module, values: Mapping[str, Tensor]) -> Iterator[None]:
    """Run the model with other values of the named parameters, and then with its own again.

    Contents are exchanged in place, one parameter at a time: ``values`` hold the model's own
    while it runs with them, and FSDP, which keeps views of its shares, sees them too.

    Args:
        model: sharded or not; nothing of it gathered.
        values: this rank's share of each.
    """
    parameters = dict(model.named_parameters())

    def exchange() -> None:
        for name, value in values.items():
            share = share_of(parameters[name])
            kept = share.clone()
            share.copy_(value)
            value.copy_(kept)

    with torch.no_grad():
        exchange()
    try:
        yield
    finally:
        with torch.no_grad():
            exchange()


class Reference:
    """Turns the model into the policy that training began with, for the length of a ``with``.

    Adapters that begin at zero are switched off: no memory is needed. Everything else that is
    trained (all weights in a full finetuning, a trained head, adapters that were loaded) is kept
    as a frozen copy and swapped in.

    Make it from the starting weights, before a checkpoint is resumed.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        adapters = get_adapter_params(model)
        self._switch_off = all(not whole_of(p).any() for name, p in adapters.items() if "lora_b" in name)
        self._initial = {
            name: share_of(p).clone()
            for name, p in model.named_parameters()
            if p.requires_grad and not (self._switch_off and name in adapters)
        }

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """The model is the reference inside this context."""
        with torch.no_grad(), parameters_as(self._model, self._initial):
            if self._switch_off:
                with adapters_off(self._model):
                    yield
            else:
                yield
