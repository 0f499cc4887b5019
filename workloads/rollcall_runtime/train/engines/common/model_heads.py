"""Models with what a loss reads of them, as one module.

The output layer is called inside of the module's own forward pass, where sharding has gathered it.
Outputs are dictionaries, as hooks of sharding find tensors in these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from rollcall_runtime.models.model_parts import hidden_states, logits, output_layer
from rollcall_runtime.train.engines.common.packing import packed_input, padded_input, unpacked
from rollcall_runtime.train.engines.common.target_logprobs import target_logprobs
from rollcall_runtime.train.train_loss import ModelOutput

if TYPE_CHECKING:
    from torch import Tensor

    from rollcall_protocol.train_settings import EngineSettings
    from rollcall_runtime.models.model_source import Head
    from rollcall_runtime.models.sequence_attention import RowLayout
    from rollcall_runtime.train.engines.common.context_parallel import ContextParallelRanks
    from rollcall_runtime.train.train_batch import TrainBatch


class LanguageModelHead(nn.Module):
    """Log-probabilities of targets, and the entropy of what they are drawn from.

    Both are of the logits divided by `temperature`, are computed where `mask` is true and are 0
    elsewhere. `logprob_chunk` positions are computed at a time, and again in the backward pass, so
    that logits of so many positions are in memory; 0: all at once, and kept.
    """

    def __init__(
        self, model: nn.Module, *, logprob_chunk: int = 0, temperature: float = 1.0
    ) -> None:
        super().__init__()
        self.model = model
        self._chunk = logprob_chunk
        self._temperature = temperature

    def forward(
        self,
        tokens: Tensor,
        targets: Tensor,
        mask: Tensor,
        positions: Tensor | None,
        layout: RowLayout | None,
        entropy: bool,
    ) -> dict[str, Tensor]:
        """`logprobs`, and `entropy` if asked for: float32, shaped as `tokens`."""
        hidden = hidden_states(self.model, tokens, positions=positions, layout=layout)[mask]
        wanted = targets[mask]
        if not self._chunk or len(hidden) <= self._chunk:
            found = [self._logprobs(hidden, wanted, entropy)]
        else:
            found = [
                checkpoint(self._logprobs, part, of_part, entropy, use_reentrant=False)
                for part, of_part in zip(
                    torch.split(hidden, self._chunk), torch.split(wanted, self._chunk), strict=True
                )
            ]
        columns = [torch.cat(column) for column in zip(*found, strict=True)]
        empty = columns[0].new_zeros(mask.shape)
        names = ("logprobs", "entropy")[: len(columns)]
        return {
            name: empty.masked_scatter(mask, column)
            for name, column in zip(names, columns, strict=True)
        }

    def _logprobs(self, hidden: Tensor, targets: Tensor, entropy: bool) -> tuple[Tensor, ...]:
        own = logits(self.model, hidden[None]).float()
        if self._temperature != 1.0:
            own = own.div_(self._temperature)
        return target_logprobs(own.squeeze(0), targets, entropy=entropy)


class NumberHead(nn.Module):
    """One number at each position, for heads `value` and `sequence-classification`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        tokens: Tensor,
        targets: Tensor,  # noqa: ARG002 - called as LanguageModelHead is
        mask: Tensor,  # noqa: ARG002
        positions: Tensor | None,
        layout: RowLayout | None,
        entropy: bool,  # noqa: ARG002
    ) -> dict[str, Tensor]:
        """`values`: float32, shaped as `tokens`."""
        hidden = hidden_states(self.model, tokens, positions=positions, layout=layout)
        return {"values": output_layer(self.model)(hidden)[..., 0].float()}


def with_head(
    model: nn.Module, head: Head, *, logprob_chunk: int = 0, temperature: float = 1.0
) -> nn.Module:
    """`model`, built for `head`, with what the engine calls; it is the attribute `model`."""
    if head == "language-model":
        return LanguageModelHead(model, logprob_chunk=logprob_chunk, temperature=temperature)
    return NumberHead(model)


def model_output(
    module: nn.Module,
    batch: TrainBatch,
    *,
    head: Head,
    settings: EngineSettings,
    entropy: bool,
    ranks: ContextParallelRanks | None = None,
) -> ModelOutput:
    """What `module` (of `with_head`) gives for a batch on its device; rows packed if set so.

    Collective over `ranks`, if these share the positions: all of them get all of the output.
    """
    packing = settings.packing
    given = packed_input(batch, settings.attention) if packing else padded_input(batch)
    length = given.tokens.shape[1]
    if ranks is not None:
        given = ranks.own_part(given)
    found = module(given.tokens, given.targets, given.mask, given.positions, given.layout, entropy)
    if ranks is not None:
        found = {name: ranks.whole(values, length) for name, values in found.items()}
    if packing:
        found = {name: unpacked(values, batch) for name, values in found.items()}
    if head == "sequence-classification":
        last = (batch.lengths - 1)[:, None]
        return ModelOutput(scores=found["values"].gather(1, last)[:, 0])
    return ModelOutput(**found)
