"""Flat host memory that is reused, and never overwritten while anybody still reads it."""

import ctypes
import mmap
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rollcall_runtime.sync.errors import ExhaustedError

_HUGE = 2 << 20


class HostBuffer:
    """Page-aligned host memory of `nbytes` bytes, zero at first.

    `memory` is a writable view of it, `address` where it begins in this process. Whoever reads or
    writes holds a pin meanwhile; a buffer without pins is its pool's to lend again.
    """

    def __init__(self, nbytes: int, *, changed: threading.Condition | None = None) -> None:
        self.nbytes = nbytes
        # A mapping cannot be empty. Private, because shared memory is limited in containers.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        try:
            self._mapping = mmap.mmap(-1, max(nbytes, 1), flags=flags)
        except OSError as error:
            raise ExhaustedError(f"no memory for a buffer of {nbytes} bytes: {error}") from error
        if nbytes >= _HUGE:  # fewer page faults and TLB misses
            self._mapping.madvise(mmap.MADV_HUGEPAGE)
        self.memory = memoryview(self._mapping)[:nbytes]
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
        self._changed = changed or threading.Condition()
        self._pins = 0

    @property
    def root(self) -> "HostBuffer":
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


class Window:
    """A part of a host buffer, to be used like one."""

    def __init__(self, root: HostBuffer, start: int, end: int) -> None:
        if not 0 <= start <= end <= root.nbytes:
            raise ValueError(f"bytes [{start}, {end}) of a buffer of {root.nbytes}")
        self.root = root
        self.nbytes = end - start
        self.memory = root.memory[start:end]
        self.address = root.address + start

    def window(self, start: int, end: int) -> "Window":
        """Bytes [start, end) of this window."""
        offset = self.address - self.root.address
        return Window(self.root, offset + start, offset + end)

    def pin(self) -> "Pin":
        """Keep the whole buffer from being lent again until the pin is released."""
        return self.root.pin()


Buffer = HostBuffer | Window


class Pin:
    """One use of a buffer; also a context manager. Releasing twice is harmless.

    A pin that is dropped is released, so that an error's path cannot lose a buffer for good.
    """

    __slots__ = ("_released", "buffer")

    def __init__(self, buffer: HostBuffer) -> None:
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
class PoolState:
    """How many buffers a pool has, and how many of them are in use."""

    buffers: int
    pinned: int


class BufferPool:
    """At most `limit` buffers, lent to one writer at a time.

    More are made while all together stay within `spare_bytes`, so that a small model never waits
    for what aborted sessions hold.
    """

    def __init__(self, *, limit: int, spare_bytes: int = 0) -> None:
        if limit < 1:
            raise ValueError("limit must be at least 1")
        self._limit = limit
        self._spare_bytes = spare_bytes
        self._changed = threading.Condition(threading.RLock())
        self._buffers: list[HostBuffer] = []

    @property
    def state(self) -> PoolState:
        """For metrics."""
        with self._changed:
            pinned = sum(buffer.pinned for buffer in self._buffers)
            return PoolState(buffers=len(self._buffers), pinned=pinned)

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
        buffer = HostBuffer(nbytes, changed=self._changed)
        self._buffers.append(buffer)
        return buffer.pin()


class GrowingPool:
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
