"""The model as GRPO sees it: log-probabilities of sampled tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from grpo.logprobs import target_logprobs
from grpo.types import TrainBatch


class Policy:
    """Log-probabilities of a batch under the model, as the sampler defines them.

    The model stays in eval mode for good: dropout would make two passes over the same tokens
    differ, and the ratio of the first update would not be 1.

    Args:
        model: torchtune ``TransformerDecoder``, with or without adapters.
        temperature: the sampling temperature.
        undefined: [V] bool, ids that the sampler cannot draw; None when it can draw all.
        autocast_dtype: run matrix products in this type; None leaves them.
        logits_chunk_size: positions projected to the vocabulary at a time.
        activation_checkpointing: keep one hidden state per layer, compute the rest again.
        compile: compile each layer.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        temperature: float,
        undefined: Tensor | None = None,
        autocast_dtype: torch.dtype | None = None,
        logits_chunk_size: int = 512,
        activation_checkpointing: bool = False,
        compile: bool = False,
    ) -> None:
        self.model = model.eval()
        self._temperature = temperature
        self._undefined = undefined
        self._autocast_dtype = autocast_dtype
        self._logits_chunk_size = logits_chunk_size
        self._activation_checkpointing = activation_checkpointing
        self._device = next(model.parameters()).device
        if compile:
            for layer in model.layers:
                layer.compile(dynamic=True)  # rows differ in length from batch to batch

    def parameters(self) -> list[nn.Parameter]:
        """What is trained."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def logprobs(self, batch: TrainBatch) -> tuple[Tensor, Tensor]:
        """policy_logprobs and entropies, [B, L] float32 each, 0 outside the loss mask.

        The first carry a gradient where gradients are enabled, the second never do.
        """
        batch = batch.to(self._device)
        with torch.autocast(
            self._device.type, self._autocast_dtype, enabled=self._autocast_dtype is not None
        ):
            return target_logprobs(
                self._hidden_states(batch.tokens),
                batch.tokens,
                batch.loss_mask,
                self.model.output,
                weights=self._output_weights(),
                temperature=self._temperature,
                undefined=self._undefined,
                chunk_size=self._logits_chunk_size,
            )

    @torch.no_grad()
    def frozen_logprobs(self, batch: TrainBatch, micro_batch_size: int) -> Tensor:
        """[B, L] logprobs without gradient, ``micro_batch_size`` rows at a time, on the batch's device."""
        width = batch.tokens.shape[1]
        parts = [
            pad(logprobs, (0, width - logprobs.shape[1])).to(batch.tokens.device)
            for logprobs, _ in map(self.logprobs, batch.split(micro_batch_size))
        ]
        return torch.cat(parts) if parts else torch.zeros(batch.tokens.shape)

    def _output_weights(self) -> list[nn.Parameter]:
        """What the output projection uses: its own parameters, or the embedding it is tied to."""
        if isinstance(self.model.output, nn.Module) and (own := list(self.model.output.parameters())):
            return own
        return [self.model.tok_embeddings.weight]

    def _hidden_states(self, tokens: Tensor) -> Tensor:
        """[B, L, D] after the final norm. Rows are right-padded: causal attention never sees padding."""
        h = self.model.tok_embeddings(tokens)
        recompute = self._activation_checkpointing and torch.is_grad_enabled()
        for layer in self.model.layers:
            h = checkpoint(layer, h, use_reentrant=False) if recompute else layer(h)
        return self.model.norm(h)
