"""Buffers whose memory other processes of this machine map, and which of them a tensor lies in."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class ExportedBuffer(Protocol):
    """`nbytes` of memory from `address` on, of a torch device type."""

    nbytes: int
    address: int
    device: str

    def export(self) -> str:
        """What another process maps all of it by: a path, or a key of the device's library."""


@dataclass(frozen=True, slots=True)
class BufferPlace:
    """Where a tensor's bytes are: from `offset` on in the buffer."""

    buffer: ExportedBuffer
    offset: int


def add(buffer: ExportedBuffer) -> None:
    """Have `place_of` know it, as long as it lives."""
    _BUFFERS[buffer.device, buffer.address] = buffer


def place_of(tensor: Tensor) -> BufferPlace | None:
    """None unless all of the tensor lies, without gaps, in such a buffer of this process."""
    if not tensor.is_contiguous():
        return None
    first = tensor.data_ptr()
    for (device, address), buffer in list(_BUFFERS.items()):
        ends = first + tensor.nbytes <= address + buffer.nbytes
        if device == tensor.device.type and address <= first and ends:
            return BufferPlace(buffer, first - address)
    return None


_BUFFERS: weakref.WeakValueDictionary[tuple[str, int], ExportedBuffer]
_BUFFERS = weakref.WeakValueDictionary()
