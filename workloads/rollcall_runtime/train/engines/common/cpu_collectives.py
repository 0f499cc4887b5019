"""What FSDP2 sends between ranks on CPUs, by the quicker of gloo's operations.

gloo reduces and scatters by reducing everything for all ranks, and gathers into one tensor by way
of a second one. Exchanging parts and broadcasting them moves and copies less
(docs/measurements/history/training-engines.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn
    from torch.distributed import ProcessGroup


def use_cpu_collectives(module: nn.Module) -> None:
    """Let all parts of `module` that fully_shard has sharded use these.

    Older versions of torch, which cannot replace collectives, keep their own.
    """
    for part in module.modules():
        if isinstance(part, FSDPModule) and hasattr(part, "set_custom_all_gather"):
            part.set_custom_all_gather(AllGatherByBroadcasts())  # type: ignore[arg-type]
            part.set_custom_reduce_scatter(ReduceScatterByExchange())  # type: ignore[arg-type]


class _OnCpu:
    """Not torch's own base class, which older versions lack."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class AllGatherByBroadcasts(_OnCpu):
    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: ProcessGroup,
        async_op: bool = False,  # noqa: ARG002 - the result is there on return
    ) -> None:
        """Fill `output_tensor` [ranks x n] with each rank's `input_tensor` [n], its part of it."""
        parts = output_tensor.view(torch.uint8).chunk(group.size())  # gloo lacks some dtypes
        own = parts[group.rank()]
        if own.data_ptr() != input_tensor.data_ptr():
            own.copy_(input_tensor.view(torch.uint8))
        works = [
            dist.broadcast(part, group=group, group_src=rank, async_op=True)
            for rank, part in enumerate(parts)
        ]
        for work in works:
            work.wait()


class ReduceScatterByExchange(_OnCpu):
    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: ProcessGroup,
        op: object,
        async_op: bool = False,  # noqa: ARG002 - as above
    ) -> None:
        """Fill `output_tensor` [n] with sum or mean over ranks of part `rank` of [ranks x n].

        ValueError for another `op`.
        """
        mean = op == dist.ReduceOp.AVG
        if not mean and op != dist.ReduceOp.SUM:
            raise ValueError(f"gradients are summed or averaged, not reduced by {op}")
        received = torch.empty_like(input_tensor)
        dist.all_to_all_single(received, input_tensor, group=group)
        torch.sum(received.view(group.size(), -1), 0, out=output_tensor)
        if mean:
            output_tensor.div_(group.size())
