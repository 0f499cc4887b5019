"""Bytes between rank 0 and the other ranks, in the group of threads that write checkpoints."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from rollcall_runtime.train.process_group import TrainerProcessGroup

MAX_BYTES = 256 << 20
"""From or to one rank: the plan of a million tensors."""


def collect(group: TrainerProcessGroup, data: bytes) -> list[bytes]:
    """Collective. Every rank's `data`, in their order, on rank 0; nothing on the others.

    OSError on all ranks if one of them has nothing or more than MAX_BYTES.
    """
    lengths = group.gather_for_checkpoint(len(data))
    _check(lengths, group.size)
    if group.rank > 0:
        dist.send(_tensor(data), dst=0, group=group.checkpoint_group)
        return []
    others = range(1, group.size)
    return [data, *(_receive(group, lengths[rank], source=rank) for rank in others)]


def hand_out(group: TrainerProcessGroup, parts: Sequence[bytes]) -> bytes:
    """Collective. This rank's one of the `parts` that rank 0 gives, one for each rank.

    OSError on all ranks if one of them is empty or has more than MAX_BYTES.
    """
    lengths = group.gather_for_checkpoint([len(part) for part in parts])[0]
    _check(lengths, group.size)
    if group.rank > 0:
        return _receive(group, lengths[group.rank], source=0)
    for rank in range(1, group.size):
        dist.send(_tensor(parts[rank]), dst=rank, group=group.checkpoint_group)
    return parts[0]


def _check(lengths: Any, size: int) -> None:
    """All ranks see the same lengths, so that none is left alone."""
    right = isinstance(lengths, list) and len(lengths) == size
    if not right or not all(type(n) is int and 0 < n <= MAX_BYTES for n in lengths):
        problem = f"of {size} ranks each may send 1 to {MAX_BYTES} bytes, not {lengths!s:.200}"
        raise OSError(errno.EMSGSIZE, problem)


def _receive(group: TrainerProcessGroup, length: int, *, source: int) -> bytes:
    data = torch.empty(length, dtype=torch.uint8)
    dist.recv(data, src=source, group=group.checkpoint_group)
    return data.numpy().tobytes()


def _tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
