"""Moving a flat buffer bucket by bucket, with a few transfers in flight at a time."""

import struct
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from rollcall_protocol.manifest import Manifest
from rollcall_runtime.sync.buffers import HostBuffer, Pin
from rollcall_runtime.sync.errors import ChecksumMismatchError

_HEADER = struct.Struct("<8sQQ")  # magic, total_bytes, bucket_bytes
_MAGIC = b"rollcal1"


class Work(Protocol):
    """A transfer in flight. `wait` blocks until it ended and raises RuntimeError if it failed."""

    def wait(self) -> object: ...


class BucketMover:
    """Runs one session's transfers; used by one thread.

    `start` begins the transfer of one chunk, `stop` raises when the session was given up. What a
    failed move left in flight is kept, its buffer pinned, until `drain` has seen it end.
    """

    def __init__(
        self,
        *,
        start: Callable[[memoryview, float], Work],
        stop: Callable[[], None],
        in_flight: int,
    ) -> None:
        self._start = start
        self._stop = stop
        self._in_flight = in_flight
        self._stranded: list[tuple[Work, Pin]] = []

    def send(self, buffer: HostBuffer, manifest: Manifest, deadline: float) -> None:
        """Send a header and all buckets; `deadline` is on the monotonic clock."""
        header = HostBuffer(_HEADER.size)
        _HEADER.pack_into(header.memory, 0, _MAGIC, manifest.total_bytes, manifest.bucket_bytes)
        self._move(header, [(0, _HEADER.size)], deadline)
        self._move(buffer, _buckets(manifest), deadline)

    def receive(self, buffer: HostBuffer, manifest: Manifest, deadline: float) -> None:
        """Receive all buckets, each checked while the next arrives.

        The header comes first because some transports cannot survive two sizes for one transfer.
        """
        header = HostBuffer(_HEADER.size)
        self._move(header, [(0, _HEADER.size)], deadline)
        announced = _HEADER.unpack(header.memory)
        expected = (_MAGIC, manifest.total_bytes, manifest.bucket_bytes)
        if announced != expected:
            raise ChecksumMismatchError(
                f"the sender announces {announced}, the manifest says {expected}"
            )
        buckets = _buckets(manifest)
        bad: list[int] = []

        def check(index: int) -> None:
            start, end = buckets[index]
            if zlib.crc32(buffer.memory[start:end]) != manifest.checksums[index]:
                bad.append(index)

        self._move(buffer, buckets, deadline, arrived=check)
        if bad:  # only now: leaving early would stall the other receivers
            raise ChecksumMismatchError(f"wrong checksum in buckets {bad} of {len(buckets)}")

    def drain(self) -> None:
        """Wait for what is still in flight, as long as the transport takes, and unpin it."""
        while self._stranded:
            work, pin = self._stranded.pop()
            try:
                work.wait()
            except RuntimeError:
                continue  # its caller had its answer when the move failed
            finally:
                pin.release()

    def _move(
        self,
        buffer: HostBuffer,
        buckets: Sequence[tuple[int, int]],
        deadline: float,
        *,
        arrived: Callable[[int], None] = lambda _: None,
    ) -> None:
        flying: deque[tuple[int, Work]] = deque()

        def land() -> None:
            index, work = flying[0]
            try:
                work.wait()
            finally:
                flying.popleft()  # it has ended, well or not
                del work  # the transport would live as long as the error's traceback
            arrived(index)

        with buffer.pin():
            try:
                for index, (start, end) in enumerate(buckets):
                    self._stop()
                    if len(flying) >= self._in_flight:
                        land()
                    flying.append((index, self._start(buffer.memory[start:end], deadline)))
                while flying:
                    land()
            finally:  # the transport may still touch the buffer
                self._stranded.extend((work, buffer.pin()) for _, work in flying)
                flying.clear()


def _buckets(manifest: Manifest) -> list[tuple[int, int]]:
    return [manifest.bucket(index) for index in range(len(manifest.checksums))]
