"""Host memory that other processes of this machine map: files in memory, without names."""

import mmap
import os
import threading
import weakref
from dataclasses import dataclass

import torch

from rollcall_runtime.sync.memory.buffers import FlatBuffer, HostBuffer


class SharedBuffer(HostBuffer):
    """A buffer that lies in a file at `path`, which other processes of this user may open."""

    path: str

    def __init__(self, nbytes: int, *, changed: threading.Condition | None = None) -> None:
        super().__init__(nbytes, changed=changed)
        _BUFFERS[self.address] = self

    def _map(self, nbytes: int) -> mmap.mmap:
        descriptor = os.memfd_create("rollcall-weights")
        weakref.finalize(self, os.close, descriptor).atexit = False
        self.path = f"/proc/{os.getpid()}/fd/{descriptor}"
        os.ftruncate(descriptor, nbytes)
        return mmap.mmap(descriptor, nbytes)


def shared_buffer(nbytes: int, changed: threading.Condition) -> FlatBuffer:
    """The factory for a pool of such buffers. Raises ExhaustedError."""
    return SharedBuffer(nbytes, changed=changed)


@dataclass(frozen=True, slots=True)
class FilePlace:
    """Where a tensor's bytes are: from `offset` on in the file at `path`."""

    path: str
    offset: int


def place_of(tensor: torch.Tensor) -> FilePlace | None:
    """None unless all of the tensor lies, without gaps, in a shared buffer of this process."""
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        return None
    first = tensor.data_ptr()
    for address, buffer in list(_BUFFERS.items()):
        if address <= first and first + tensor.nbytes <= address + buffer.nbytes:
            return FilePlace(buffer.path, first - address)
    return None


_BUFFERS: "weakref.WeakValueDictionary[int, SharedBuffer]" = weakref.WeakValueDictionary()
