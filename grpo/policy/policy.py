"""The model as GRPO sees it: log-probabilities of sampled tokens."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from grpo.distributed import reshard
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
        device: where passes run; None: where the model is.

    Attributes:
        module: the module whose forward pass gives the log-probabilities; shard this one.
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
        device: torch.device | None = None,
    ) -> None:
        self.module = _LogprobModel(
            model.eval(),
            temperature=temperature,
            undefined=undefined,
            logits_chunk_size=logits_chunk_size,
            activation_checkpointing=activation_checkpointing,
        )
        self._autocast_dtype = autocast_dtype
        self._device = device or next(model.parameters()).device
        if compile:
            for layer in model.layers:
                layer.compile(dynamic=True)  # rows differ in length from batch to batch

    def parameters(self) -> list[nn.Parameter]:
        """What is trained."""
        return [p for p in self.module.parameters() if p.requires_grad]

    def logprobs(self, batch: TrainBatch) -> tuple[Tensor, Tensor]:
        """policy_logprobs and entropies, [B, L] float32 each, 0 outside the loss mask.

        The first carry a gradient where gradients are enabled, the second never do.
        """
        batch = batch.to(self._device)
        with torch.autocast(
            self._device.type, self._autocast_dtype, enabled=self._autocast_dtype is not None
        ):
            return self.module(batch.tokens, batch.loss_mask)

    @torch.no_grad()
    def frozen_logprobs(self, batch: TrainBatch, micro_batch_size: int, passes: int = 0) -> Tensor:
        """[B, L] logprobs without gradient, ``micro_batch_size`` rows at a time, on the batch's device.

        A sharded model makes at least ``passes`` passes, as many as the other ranks.
        """
        width = batch.tokens.shape[1]
        parts = [
            pad(logprobs, (0, width - logprobs.shape[1])).to(batch.tokens.device)
            for logprobs, _ in map(self.logprobs, batch.split(micro_batch_size, passes))
        ]
        reshard(self.module)
        if not len(batch):
            return torch.zeros(batch.tokens.shape, device=batch.tokens.device)
        return torch.cat(parts)[: len(batch)]


class _LogprobModel(nn.Module):
    """A decoder whose forward pass ends in log-probabilities: what FSDP sees as the model."""

    def __init__(
        self,
        decoder: nn.Module,
        *,
        temperature: float,
        undefined: Tensor | None,
        logits_chunk_size: int,
        activation_checkpointing: bool,
    ) -> None:
        super().__init__()
        self.decoder = decoder
        self.temperature = temperature
        self.undefined = undefined
        self.logits_chunk_size = logits_chunk_size
        self.activation_checkpointing = activation_checkpointing

    def forward(self, tokens: Tensor, loss_mask: Tensor) -> tuple[Tensor, Tensor]:
        """As :meth:`Policy.logprobs`."""
        hidden = self._hidden_states(tokens)
        return target_logprobs(
            hidden,
            tokens,
            loss_mask,
            self._output(),
            weights=self._output_weights(),
            temperature=self.temperature,
            undefined=self.undefined,
            chunk_size=self.logits_chunk_size,
        )

    def _hidden_states(self, tokens: Tensor) -> Tensor:
        """[B, L, D] after the final norm. Rows are right-padded: causal attention never sees padding."""
        h = self.decoder.tok_embeddings(tokens)
        recompute = self.activation_checkpointing and torch.is_grad_enabled()
        for layer in self.decoder.layers:
            h = checkpoint(layer, h, use_reentrant=False) if recompute else layer(h)
        return self.decoder.norm(h)

    def _output(self) -> Callable[[Tensor], Tensor]:
        """The projection to the vocabulary; a unit of its own is gathered here and past its hooks.

        It runs once a chunk, in both directions, and must stay gathered in between.
        """
        output = self.decoder.output
        if isinstance(output, FSDPModule):
            output.unshard()
            return output.forward
        return output

    def _output_weights(self) -> list[nn.Parameter]:
        """What the projection uses: its own parameters, or the embedding it is tied to."""
        output = self.decoder.output
        if isinstance(output, nn.Module) and (own := list(output.parameters())):
            return own
        return [self.decoder.tok_embeddings.weight]
