"""A receiver's second buffer, made equal to the served weights ahead of the next delta.

A delta is put into a copy of the weights that it begins with. The copy is made here while nobody
waits for it, in the buffer that the next version takes anyway.
"""

import threading
from collections.abc import Callable

import numpy as np

from rollcall_protocol.wire.ids import Version
from rollcall_runtime.sync.errors import ExhaustedError
from rollcall_runtime.sync.memory.buffers import BufferPool, Pin, WholeBuffer

_PIECE = 16 << 20  # bytes copied between two looks at whether the copy is still wanted


class Spare:
    """At most one copy, in a buffer of `pool`. Any thread may call anything."""

    def __init__(self, pool: BufferPool) -> None:
        self._pool = pool
        self._lock = threading.Lock()  # held while a copy is made
        self._unwanted = threading.Event()
        self._copy: tuple[Version, Pin] | None = None

    def make(self, version: Version, weights: WholeBuffer) -> None:
        """Copy `weights`, which are `version`; nothing when no buffer is free."""
        with self._lock:
            self._unwanted.clear()
            self._release()
            try:
                pin = self._pool.take(weights.nbytes, timeout=0)
            except ExhaustedError:
                return
            if _copy(weights, pin.buffer, stop=self._unwanted.is_set):
                self._copy = version, pin
            else:
                pin.release()

    def take(self, version: Version) -> Pin | None:
        """The copy, to be written to, if it is of `version`; waits while one is made."""
        with self._lock:
            copy = self._copy
            if copy is not None and copy[0] == version:
                self._copy = None
                return copy[1]
            self._release()
            return None

    def drop(self) -> None:
        """Let the buffer go: it is needed for something else."""
        self._unwanted.set()
        with self._lock:
            self._release()

    def _release(self) -> None:
        if self._copy is not None:
            self._copy[1].release()
            self._copy = None


def _copy(source: WholeBuffer, target: WholeBuffer, *, stop: Callable[[], bool]) -> bool:
    """Whether all of it was copied. By numpy, which lets other threads run."""
    old, new = (np.frombuffer(buffer.memory, np.uint8) for buffer in (source, target))
    for start in range(0, len(old), _PIECE):
        if stop():
            return False
        np.copyto(new[start : start + _PIECE], old[start : start + _PIECE])
    return True
