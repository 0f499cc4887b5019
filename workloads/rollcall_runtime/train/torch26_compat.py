"""What FSDP2 lacks in torch 2.6, which Debian ships. Empty from 2.7 on."""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

CANNOT_RESHARD = not hasattr(torch.cpu.Stream, "record_event")
"""Gathering a parameter again counts as changing it there, which the backward pass refuses."""


def complete_cpu_streams() -> None:
    """Give torch.cpu.Stream the two methods that FSDP2 calls; they do nothing in later versions."""
    if CANNOT_RESHARD:
        torch.cpu.Stream.record_event = _nothing  # type: ignore[method-assign,assignment]
        torch.cpu.Stream.wait_event = _nothing  # type: ignore[method-assign,assignment]


def sum_per_mean(mesh: DeviceMesh) -> float:
    """The mean of ones that the mesh's collectives give: 1, or the number of ranks.

    Before torch 2.7 gloo silently returns the sum instead of the mean.
    """
    found = 1.0
    for dimension in range(mesh.ndim):
        group = mesh.get_group(dimension)
        if group.size() > 1:
            ones = torch.ones(group.size(), device=mesh.device_type)
            shard = torch.empty(1, device=mesh.device_type)
            # The collective that FSDP2 uses; torch 2.13 renamed it.
            reduce = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
            reduce(shard, ones, op=dist.ReduceOp.AVG, group=group)
            found *= float(shard)
    return found


def _nothing(_stream: torch.cpu.Stream, *_arguments: Any) -> None:
    return None
