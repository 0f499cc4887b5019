"""Host memory that other processes of this machine map: files in memory, without names."""

import mmap
import os
import threading
import weakref
from collections.abc import Callable

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


class MappedFile(HostBuffer):
    """The first bytes of a file in memory, which another process has, too.

    What is written to a `private` one stays in this process. `unmapped` is called, in any thread,
    when neither the buffer nor a view of it, such as a tensor, is left.
    """

    def __init__(
        self,
        descriptor: int,
        nbytes: int,
        *,
        private: bool = False,
        unmapped: Callable[[], object] | None = None,
    ) -> None:
        self._descriptor, self._unmapped = descriptor, unmapped
        self._flags = mmap.MAP_PRIVATE if private else mmap.MAP_SHARED
        super().__init__(nbytes)

    def _map(self, nbytes: int) -> mmap.mmap:
        mapping = mmap.mmap(self._descriptor, nbytes, flags=self._flags)
        if self._unmapped is not None:
            weakref.finalize(mapping, self._unmapped).atexit = False
        return mapping


def shared_buffer(nbytes: int, changed: threading.Condition) -> FlatBuffer:
    """The factory for a pool of such buffers. Raises ExhaustedError."""
    return SharedBuffer(nbytes, changed=changed)
