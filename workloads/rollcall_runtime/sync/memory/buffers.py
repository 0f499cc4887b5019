"""Flat memory that is reused, and never overwritten while anybody still reads it.

Device memory is in `device_buffers`; what both have is in `FlatBuffer`.
"""

import ctypes
import mmap
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rollcall_runtime.sync.errors import ExhaustedError

_HUGE = 2 << 20


class FlatBuffer(ABC):
    """Memory of `nbytes` bytes that begins at `address` on `device` (a torch device type).

    Whoever reads or writes holds a pin meanwhile; a buffer without pins is its pool's to lend
    again.
    """

    nbytes: int
    address: int
    device: str

    def __init__(self, changed: threading.Condition | None) -> None:
        self._changed = changed or threading.Condition()
        self._pins = 0

    @property
    @abstractmethod
    def memory(self) -> memoryview:
        """A writable view; TypeError for memory that only a device can reach."""

    @abstractmethod
    def read(self, start: int, end: int, scratch: memoryview | None = None) -> memoryview:
        """Bytes [start, end) in host memory: a view, or a copy at the beginning of `scratch`."""

    @abstractmethod
    def write(self, start: int, data: memoryview) -> None:
        """Overwrite the bytes from `start` on."""

    @abstractmethod
    def scratch(self, nbytes: int) -> memoryview:
        """Host memory to `read` into; empty where `read` needs none."""

    @property
    def root(self) -> "FlatBuffer":
        """The whole buffer: what a transport registers once."""
        return self

    def window(self, start: int, end: int) -> "Window":
        """Bytes [start, end) as a buffer; its pins are this buffer's."""
        return Window(self, start, end)

    @property
    def pinned(self) -> bool:
        """Whether anybody uses the buffer."""
        return self._pins > 0

    def pin(self) -> "Pin":
        """Keep the buffer from being lent again until the pin is released."""
        with self._changed:
            self._pins += 1
        return Pin(self)

    def _unpin(self) -> None:
        with self._changed:
            self._pins -= 1
            self._changed.notify_all()


class HostBuffer(FlatBuffer):
    """Page-aligned host memory, zero at first."""

    device = "cpu"

    def __init__(self, nbytes: int, *, changed: threading.Condition | None = None) -> None:
        super().__init__(changed)
        self.nbytes = nbytes
        # A mapping cannot be empty. Private, because shared memory is limited in containers.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        try:
            self._mapping = mmap.mmap(-1, max(nbytes, 1), flags=flags)
        except OSError as error:
            raise ExhaustedError(f"no memory for a buffer of {nbytes} bytes: {error}") from error
        if nbytes >= _HUGE:  # fewer page faults and TLB misses
            self._mapping.madvise(mmap.MADV_HUGEPAGE)
        self._memory = memoryview(self._mapping)[:nbytes]
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))

    @property
    def memory(self) -> memoryview:
        """A writable view."""
        return self._memory

    def read(self, start: int, end: int, scratch: memoryview | None = None) -> memoryview:  # noqa: ARG002
        """A view of bytes [start, end)."""
        return self._memory[start:end]

    def write(self, start: int, data: memoryview) -> None:
        """Overwrite the bytes from `start` on."""
        self._memory[start : start + len(data)] = data

    def scratch(self, nbytes: int) -> memoryview:  # noqa: ARG002
        """Nothing: `read` needs none."""
        return memoryview(b"")


class Window:
    """A part of a buffer, to be used like one."""

    def __init__(self, root: FlatBuffer, start: int, end: int) -> None:
        if not 0 <= start <= end <= root.nbytes:
            raise ValueError(f"bytes [{start}, {end}) of a buffer of {root.nbytes}")
        self.root = root
        self.start = start  # in the root
        self.nbytes = end - start
        self.address = root.address + start
        self.device = root.device

    @property
    def memory(self) -> memoryview:
        """A writable view; TypeError for memory that only a device can reach."""
        return self.root.memory[self.start : self.start + self.nbytes]

    def read(self, start: int, end: int, scratch: memoryview | None = None) -> memoryview:
        """Bytes [start, end) of this window in host memory; see `FlatBuffer.read`."""
        return self.root.read(self.start + start, self.start + end, scratch)

    def write(self, start: int, data: memoryview) -> None:
        """Overwrite the bytes from `start` on."""
        self.root.write(self.start + start, data)

    def scratch(self, nbytes: int) -> memoryview:
        """Host memory to `read` into."""
        return self.root.scratch(nbytes)

    def window(self, start: int, end: int) -> "Window":
        """Bytes [start, end) of this window."""
        return Window(self.root, self.start + start, self.start + end)

    def pin(self) -> "Pin":
        """Keep the whole buffer from being lent again until the pin is released."""
        return self.root.pin()


Buffer = FlatBuffer | Window
Make = Callable[[int, threading.Condition], FlatBuffer]


class Pin:
    """One use of a buffer; also a context manager. Releasing twice is harmless.

    A pin that is dropped is released, so that an error's path cannot lose a buffer for good.
    """

    __slots__ = ("_released", "buffer")

    def __init__(self, buffer: FlatBuffer) -> None:
        self.buffer = buffer
        self._released = threading.Lock()

    def release(self) -> None:
        """End this use."""
        if self._released.acquire(blocking=False):
            self.buffer._unpin()  # noqa: SLF001 - a pin is part of its buffer

    def __del__(self) -> None:
        self.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


@dataclass(frozen=True, slots=True)
class BufferPoolState:
    """How many buffers a pool has, and how many of them are in use."""

    buffers: int
    pinned: int


class BufferPool:
    """At most `limit` buffers, lent to one writer at a time.

    More are made while all together stay within `spare_bytes`, so that a small model never waits
    for what aborted sessions hold. `make(nbytes, changed)` makes one, by default of host memory.
    """

    def __init__(self, *, limit: int, spare_bytes: int = 0, make: Make | None = None) -> None:
        if limit < 1:
            raise ValueError("limit must be at least 1")
        self._limit = limit
        self._spare_bytes = spare_bytes
        self._changed = threading.Condition(threading.RLock())
        self._make = make or _host_buffer
        self._buffers: list[FlatBuffer] = []

    @property
    def state(self) -> BufferPoolState:
        """For metrics."""
        with self._changed:
            pinned = sum(buffer.pinned for buffer in self._buffers)
            return BufferPoolState(buffers=len(self._buffers), pinned=pinned)

    def take(self, nbytes: int, *, timeout: float) -> Pin:
        """Pin a buffer of exactly `nbytes` that nobody uses; waits until there is one.

        Raises ExhaustedError after `timeout` seconds, or when memory is short.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            while (pin := self._try_take(nbytes)) is None:
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    raise ExhaustedError(
                        f"all {len(self._buffers)} weight buffers were in use for {timeout:g} s"
                    )
        return pin

    def _try_take(self, nbytes: int) -> Pin | None:
        free = [buffer for buffer in self._buffers if not buffer.pinned]
        fitting = next((buffer for buffer in free if buffer.nbytes == nbytes), None)
        for buffer in free:
            # The model has changed, or there are more buffers than are needed now.
            if buffer is not fitting and (
                buffer.nbytes != nbytes or len(self._buffers) > self._limit
            ):
                self._buffers.remove(buffer)
        if fitting is not None:
            return fitting.pin()
        total = sum(buffer.nbytes for buffer in self._buffers)
        if len(self._buffers) >= self._limit and total + nbytes > self._spare_bytes:
            return None
        buffer = self._make(nbytes, self._changed)
        self._buffers.append(buffer)
        return buffer.pin()


def _host_buffer(nbytes: int, changed: threading.Condition) -> FlatBuffer:
    return HostBuffer(nbytes, changed=changed)


class GrowingBufferPool:
    """Buffers for what has another length each time.

    They hold the longest so far, rounded up to a power of two, so that an engine that registers
    memory sees the same few again and again.
    """

    def __init__(self, *, limit: int, spare_bytes: int = 0) -> None:
        self._pool = BufferPool(limit=limit, spare_bytes=spare_bytes)
        self._capacity = mmap.PAGESIZE

    def take(self, nbytes: int, *, timeout: float) -> tuple[Pin, Window]:
        """Pin a buffer that nobody uses, and the first `nbytes` of it; raises ExhaustedError."""
        if nbytes > self._capacity:
            self._capacity = 1 << (nbytes - 1).bit_length()
        pin = self._pool.take(self._capacity, timeout=timeout)
        return pin, pin.buffer.window(0, nbytes)
