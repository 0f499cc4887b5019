"""A decoder of torchtitan with what a loss reads of it, called as `common.model_heads` are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.nn import functional as F  # noqa: N812 - torch's own convention

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed.device_mesh import DeviceMesh

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


def target_logprobs(
    logits: Tensor, targets: Tensor, *, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """Log-probability of each target and, if asked, the entropy of its distribution in nats.

    `logits` [rows, length, vocabulary] is whole, or a DTensor sharded over its last dimension.
    `targets` [rows, length] are the same on all ranks of its mesh, as are the results,
    [rows, length] in float32.
    """
    if isinstance(logits, DTensor):
        return _of_sharded(logits, targets, entropy=entropy)
    logprobs = logits.float().log_softmax(-1)
    found = logprobs.gather(-1, targets[..., None])[..., 0]
    return found, -(logprobs.exp() * logprobs).sum(-1) if entropy else None


def _of_sharded(logits: DTensor, targets: Tensor, *, entropy: bool) -> tuple[Tensor, Tensor | None]:
    mesh, local = logits.device_mesh, logits.to_local().float()
    largest = local.detach().amax(-1)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=mesh.get_group())
    shifted = local - largest[..., None]
    weights = shifted.exp()
    total = _sum(weights.sum(-1), mesh)
    first = mesh.get_local_rank() * (logits.shape[-1] // mesh.size())
    index = targets - first
    is_here = (index >= 0) & (index < local.shape[-1])
    index = index.clamp(0, local.shape[-1] - 1)
    found = _sum(shifted.gather(-1, index[..., None])[..., 0] * is_here, mesh)
    logprobs = found - total.log()
    if not entropy:
        return logprobs, None
    return logprobs, total.log() - _sum((weights * shifted).sum(-1), mesh) / total


def _sum(values: Tensor, mesh: DeviceMesh) -> Tensor:
    """Added up over the ranks, which all compute the same from it: each has the whole gradient."""
    partial = DTensor.from_local(values, mesh, [Partial()], run_check=False)
    whole: Tensor = partial.redistribute(placements=[Replicate()]).to_local()
    return whole
