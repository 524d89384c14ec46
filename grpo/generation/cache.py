"""Keys and values of a batch whose rows leave when they are finished."""

from __future__ import annotations

import torch
from torch import Tensor

GROWTH = 64  # columns added at a time: few reallocations, little unused memory


class KVCache:
    """Keys and values per layer, [B, kv heads, capacity, head dim], filled up to ``length``.

    Attributes:
        length: filled columns, the same for all rows (prompts are left-padded).
        visible: [B, length] bool, False on the padding before a prompt; None when there is none.
    """

    def __init__(self, num_layers: int, visible: Tensor | None) -> None:
        self.length = 0
        self.visible = visible
        self._keys: list[Tensor | None] = [None] * num_layers
        self._values: list[Tensor | None] = [None] * num_layers

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store [B, kv heads, S, head dim] at the end; return all keys and values so far.

        ``length`` moves on when :meth:`advance` is called, after the last layer.
        """
        end = self.length + keys.shape[2]
        self._keys[layer] = _with_room(self._keys[layer], keys, end)
        self._values[layer] = _with_room(self._values[layer], values, end)
        self._keys[layer][:, :, self.length : end] = keys
        self._values[layer][:, :, self.length : end] = values
        return self._keys[layer][:, :, :end], self._values[layer][:, :, :end]

    def advance(self, columns: int) -> None:
        """Count ``columns`` as filled in every layer; what was sampled is visible."""
        self.length += columns
        if self.visible is not None and self.visible.shape[1] < self.length:
            new = self.visible.new_ones(len(self.visible), self.length - self.visible.shape[1])
            self.visible = torch.cat([self.visible, new], dim=1)

    def rows(self, index: Tensor) -> KVCache:
        """A new cache of the given rows, a row as often as it is named.

        Used to share a prompt out to its samples and to let finished sequences go.
        """
        other = KVCache(len(self._keys), None if self.visible is None else self.visible[index])
        other.length = self.length
        other._keys = [keys[:, :, : self.length].index_select(0, index) for keys in self._keys]
        other._values = [values[:, :, : self.length].index_select(0, index) for values in self._values]
        return other


def _with_room(stored: Tensor | None, new: Tensor, end: int) -> Tensor:
    """``stored`` with at least ``end`` columns, like ``new`` in the other dimensions."""
    if stored is not None and stored.shape[2] >= end:
        return stored
    batch, heads, _, dim = new.shape
    grown = new.new_empty(batch, heads, end + GROWTH, dim)
    if stored is not None:
        grown[:, :, : stored.shape[2]] = stored
    return grown
