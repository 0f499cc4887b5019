"""Flat buffers in host memory, the holds that protect them from reuse, and pools of them.

Buffers in device memory are in `device_buffers`; both derive from `FlatBuffer`.
"""

import ctypes
import mmap
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rollcall_runtime.sync.errors import ExhaustedError

_HUGE = 2 << 20
_LIBC = ctypes.CDLL(None, use_errno=True)


class FlatBuffer(ABC):
    """Memory of `nbytes` bytes that begins at `address` on `device` (a torch device type).

    Every reader and writer has a `BufferHold` on it meanwhile; its pool lends a buffer again only
    when it has no holds.
    """

    nbytes: int
    address: int
    device: str

    def __init__(self, changed: threading.Condition | None) -> None:
        self._changed = changed or threading.Condition()
        self._holds = 0

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
        """Host memory for `read` to copy into; empty where `read` returns a view."""

    @property
    def root(self) -> "FlatBuffer":
        """The whole buffer: what a transport registers once."""
        return self

    def window(self, start: int, end: int) -> "BufferWindow":
        """Bytes [start, end) as a buffer; its holds are holds on this buffer."""
        return BufferWindow(self, start, end)

    @property
    def in_use(self) -> bool:
        """Whether the buffer has any hold."""
        return self._holds > 0

    def hold(self) -> "BufferHold":
        """Keep the buffer from being lent again until the hold is released."""
        with self._changed:
            self._holds += 1
        return BufferHold(self)

    def _release_hold(self) -> None:
        with self._changed:
            self._holds -= 1
            self._changed.notify_all()


class HostBuffer(FlatBuffer):
    """Page-aligned host memory, zero at first."""

    device = "cpu"

    def __init__(self, nbytes: int, *, changed: threading.Condition | None = None) -> None:
        super().__init__(changed)
        self.nbytes = nbytes
        try:
            self._mapping = self._map(max(nbytes, 1))  # a mapping cannot be empty
        except OSError as error:
            raise ExhaustedError(
                f"cannot allocate a buffer of {nbytes} bytes of host memory: {error}"
            ) from error
        if nbytes >= _HUGE:  # fewer page faults and TLB misses
            self._mapping.madvise(mmap.MADV_HUGEPAGE)
        self._memory = memoryview(self._mapping)[:nbytes]
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
        self._protecting = threading.Lock()
        self._protections = 0

    def _map(self, nbytes: int) -> mmap.mmap:
        return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    @property
    def memory(self) -> memoryview:
        """A writable view of all the buffer's bytes."""
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

    @contextmanager
    def write_protected(self) -> Iterator[None]:
        """Make the memory read-only meanwhile; OSError when the system refuses.

        What the kernel is to write there for a transport then fails (EFAULT) and costs that
        transport its connection; a write by this process's own code would end the process.
        """
        self._count_protection(1)
        try:
            yield
        finally:
            self._count_protection(-1)

    def _count_protection(self, change: int) -> None:
        with self._protecting:
            before, self._protections = self._protections, self._protections + change
            if bool(before) == bool(self._protections):
                return
            flags = mmap.PROT_READ | (0 if self._protections else mmap.PROT_WRITE)
            start, size = ctypes.c_void_p(self.address), ctypes.c_size_t(max(self.nbytes, 1))
            if _LIBC.mprotect(start, size, flags):
                raise OSError(ctypes.get_errno(), "cannot protect a buffer of weights")


class BufferWindow:
    """A part of a buffer, with the interface of one."""

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

    def window(self, start: int, end: int) -> "BufferWindow":
        """Bytes [start, end) of this window."""
        return BufferWindow(self.root, self.start + start, self.start + end)

    def hold(self) -> "BufferHold":
        """Keep the whole buffer from being lent again until the hold is released."""
        return self.root.hold()


Buffer = FlatBuffer | BufferWindow
BufferFactory = Callable[[int, threading.Condition], FlatBuffer]


class BufferHold:
    """One use of a buffer; also a context manager. Releasing twice is harmless.

    A hold that is dropped is released, so that an error's path cannot lose a buffer for good.
    """

    __slots__ = ("_released", "buffer")

    def __init__(self, buffer: FlatBuffer) -> None:
        self.buffer = buffer
        self._released = threading.Lock()

    def release(self) -> None:
        """End this use of the buffer; may be called twice."""
        if self._released.acquire(blocking=False):
            self.buffer._release_hold()  # noqa: SLF001 - a hold is part of its buffer

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
    """How many buffers a pool has made, and how many of them are in use."""

    buffers: int
    in_use: int


class BufferPool:
    """At most `limit` buffers, lent to one writer at a time.

    More are made while all together stay within `spare_bytes`, so that a small model never waits
    for buffers that aborted sessions hold. `make(nbytes, changed)` makes one, by default in host
    memory.
    """

    def __init__(
        self, *, limit: int, spare_bytes: int = 0, make: BufferFactory | None = None
    ) -> None:
        if limit < 1:
            raise ValueError("limit must be at least 1")
        self._limit = limit
        self._spare_bytes = spare_bytes
        self._changed = threading.Condition(threading.RLock())
        self._make = make or _host_buffer
        self._buffers: list[FlatBuffer] = []

    @property
    def state(self) -> BufferPoolState:
        """How many buffers there are and how many are in use, for metrics."""
        with self._changed:
            in_use = sum(buffer.in_use for buffer in self._buffers)
            return BufferPoolState(buffers=len(self._buffers), in_use=in_use)

    def take(self, nbytes: int, *, timeout: float) -> BufferHold:
        """A hold on an unused buffer of exactly `nbytes`; waits until there is one.

        Raises ExhaustedError after `timeout` seconds, or when memory is short.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            while (hold := self._try_take(nbytes)) is None:
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    raise ExhaustedError(
                        f"all {len(self._buffers)} weight buffers were still in use "
                        f"after {timeout:g} s"
                    )
        return hold

    def _try_take(self, nbytes: int) -> BufferHold | None:
        free = [buffer for buffer in self._buffers if not buffer.in_use]
        fitting = next((buffer for buffer in free if buffer.nbytes == nbytes), None)
        for buffer in free:
            # The model has changed, or more buffers exist than are needed now.
            if buffer is not fitting and (
                buffer.nbytes != nbytes or len(self._buffers) > self._limit
            ):
                self._buffers.remove(buffer)
        if fitting is not None:
            return fitting.hold()
        total = sum(buffer.nbytes for buffer in self._buffers)
        if len(self._buffers) >= self._limit and total + nbytes > self._spare_bytes:
            return None
        buffer = self._make(nbytes, self._changed)
        self._buffers.append(buffer)
        return buffer.hold()


def _host_buffer(nbytes: int, changed: threading.Condition) -> FlatBuffer:
    return HostBuffer(nbytes, changed=changed)


class GrowingBufferPool:
    """Buffers for contents whose length changes each time, such as deltas.

    Their length is the longest so far, rounded up to a power of two, so that an engine that
    registers memory sees the same few buffers again and again.
    """

    def __init__(self, *, limit: int, spare_bytes: int = 0) -> None:
        self._pool = BufferPool(limit=limit, spare_bytes=spare_bytes)
        self._capacity = mmap.PAGESIZE

    def take(self, nbytes: int, *, timeout: float) -> tuple[BufferHold, BufferWindow]:
        """A hold on an unused buffer, and its first `nbytes`; raises ExhaustedError."""
        if nbytes > self._capacity:
            self._capacity = 1 << (nbytes - 1).bit_length()
        hold = self._pool.take(self._capacity, timeout=timeout)
        return hold, hold.buffer.window(0, nbytes)
