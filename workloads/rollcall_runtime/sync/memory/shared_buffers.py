"""Host memory that other processes of this machine map: files in memory, without names."""

import mmap
import os
import threading
import weakref

from rollcall_runtime.sync.memory import exported_buffers
from rollcall_runtime.sync.memory.buffers import FlatBuffer, HostBuffer


class SharedBuffer(HostBuffer):
    """A buffer that lies in a file, which other processes of this user may open."""

    def __init__(self, nbytes: int, *, changed: threading.Condition | None = None) -> None:
        super().__init__(nbytes, changed=changed)
        exported_buffers.add(self)

    def export(self) -> str:
        """The path of the file."""
        return self._path

    def _map(self, nbytes: int) -> mmap.mmap:
        descriptor = os.memfd_create("rollcall-weights")
        weakref.finalize(self, os.close, descriptor).atexit = False
        self._path = f"/proc/{os.getpid()}/fd/{descriptor}"
        os.ftruncate(descriptor, nbytes)
        return mmap.mmap(descriptor, nbytes)


def shared_buffer(nbytes: int, changed: threading.Condition) -> FlatBuffer:
    """The factory for a pool of such buffers. Raises ExhaustedError."""
    return SharedBuffer(nbytes, changed=changed)
