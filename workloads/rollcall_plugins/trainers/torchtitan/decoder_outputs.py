"""A decoder of torchtitan with what a loss reads of it, called as `common.model_heads` are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from rollcall_plugins.trainers.torchtitan.vocabulary_parallel import target_logprobs

if TYPE_CHECKING:
    from torch import Tensor

    from rollcall_runtime.models.sequence_attention import RowLayout


class DecoderOutputs(nn.Module):
    """Log-probabilities of targets, or one number at each position.

    The former are of the logits divided by `temperature`.

    Rows are padded to multiples of `length_multiple`, so that ranks can share a sequence.
    """

    def __init__(
        self,
        decoder: nn.Module,
        *,
        numbers: bool,
        length_multiple: int,
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        self.model = decoder
        self._numbers = numbers
        self._length_multiple = length_multiple
        self._temperature = temperature

    def forward(
        self,
        tokens: Tensor,
        targets: Tensor,
        mask: Tensor,
        positions: Tensor | None,
        layout: RowLayout | None,  # noqa: ARG002 - of packed or shared rows, which are refused
        entropy: bool,
    ) -> dict[str, Tensor]:
        """`values`; or `logprobs`, 0 where `mask` is false, and `entropy` if asked for.

        float32, shaped as `tokens`.
        """
        missing = -tokens.shape[1] % self._length_multiple
        output = self.model(F.pad(tokens, (0, missing)), positions)
        if self._numbers:
            whole = output.full_tensor() if isinstance(output, DTensor) else output
            return {"values": whole[:, : tokens.shape[1], 0].float()}
        if self._temperature != 1.0:
            output = output.float() / self._temperature
        logprobs, spread = target_logprobs(output, F.pad(targets, (0, missing)), entropy=entropy)
        found = (
            {"logprobs": logprobs} if spread is None else {"logprobs": logprobs, "entropy": spread}
        )
        return {
            name: values[:, : tokens.shape[1]].masked_fill(~mask, 0.0)
            for name, values in found.items()
        }
