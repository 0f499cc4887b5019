"""Moving a flat buffer in small operations, a few in flight at a time, checked bucket by bucket."""

import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from zlib_ng.zlib_ng import crc32

from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.engine import SyncSettings
from rollcall_runtime.sync.errors import ChecksumMismatchError, TimedOutError
from rollcall_runtime.sync.memory.buffers import Buffer, HostBuffer, Pin, Window

_HEADER = struct.Struct("<8sQQ")  # magic, total_bytes, bucket_bytes
_MAGIC = b"rollcal1"


class Work(Protocol):
    """A transfer in flight. `wait` blocks until it ended and raises RuntimeError if it failed."""

    def wait(self) -> object: ...


def drain(stranded: list[tuple[Work, Pin]]) -> None:
    """Wait for each, as long as the transport takes, and unpin its buffer; empties the list."""
    while stranded:
        work, pin = stranded.pop()
        try:
            work.wait()
        except RuntimeError:
            continue  # its caller had its answer when the move failed
        finally:
            pin.release()


@dataclass(frozen=True, slots=True)
class Operation:
    """Bytes [start, end) of the buffer, in `bucket`; `last` completes it."""

    start: int
    end: int
    bucket: int = 0
    last: bool = True


Row = tuple[Operation, ...]  # moved at once


class BucketTransfer:
    """Runs one session's transfers; used by one thread.

    `start(chunk, seconds)` begins the transfer of one chunk, `stop` raises when the session was
    given up; `landed(bucket)` is told of each bucket that was sent, or arrived and was
    checked. `direct(window, seconds)` begins that of memory that only a device can reach.

    Operations are small so that a transport can give up early on one that is stuck. What
    a failed move left in flight is kept, its buffer pinned, until `drain` has seen it end.
    """

    def __init__(
        self,
        *,
        start: Callable[[memoryview, float], Work],
        stop: Callable[[], None],
        settings: SyncSettings,
        landed: Callable[[int], None] = lambda _: None,
        direct: Callable[[Window, float], Work] | None = None,
    ) -> None:
        self._start = start
        self._direct = direct
        self._stop = stop
        self._settings = settings
        self._landed = landed
        self._stranded: list[tuple[Work, Pin]] = []

    def send(self, buffer: Buffer, manifest: WeightManifest, deadline: float) -> None:
        """Send a header and all buckets; `deadline` is on the monotonic clock."""
        header = HostBuffer(_HEADER.size)
        _HEADER.pack_into(header.memory, 0, _MAGIC, manifest.total_bytes, manifest.bucket_bytes)
        self._move(header, [Operation(0, _HEADER.size)], deadline)

        def sent(operation: Operation) -> None:
            if operation.last:
                self._landed(operation.bucket)

        self._move(buffer, self._operations(manifest), deadline, landed=sent)

    def receive(self, buffer: Buffer, manifest: WeightManifest, deadline: float) -> None:
        """Receive all buckets, each checked while the next arrives.

        The header comes first because some transports cannot survive two sizes for one transfer.
        """
        header = HostBuffer(_HEADER.size)
        self._move(header, [Operation(0, _HEADER.size)], deadline)
        announced = _HEADER.unpack(header.memory)
        expected = (_MAGIC, manifest.total_bytes, manifest.bucket_bytes)
        if announced != expected:
            raise ChecksumMismatchError(
                f"the sender announces {announced}, the manifest says {expected}"
            )
        self.fill(buffer, manifest, deadline)

    def fill(
        self,
        buffer: Buffer,
        manifest: WeightManifest,
        deadline: float,
        *,
        numbers: Sequence[int] | None = None,
        together: bool = False,
    ) -> None:
        """Receive all buckets, for transports that need no header.

        `numbers` are what the sender calls them, if they are some of a whole. `together` moves
        small ones that follow each other there in one operation.
        """
        operations = self._operations(manifest)
        rows: list[Row] = [(operation,) for operation in operations]
        if together:
            rows = self._together(operations, numbers or range(len(manifest.checksums)))
        self.fill_rows(buffer, manifest, rows, deadline, numbers=numbers)

    def fill_rows(
        self,
        buffer: Buffer,
        manifest: WeightManifest,
        rows: Sequence[Row],
        deadline: float,
        *,
        numbers: Sequence[int] | None = None,
    ) -> None:
        """Receive all buckets, each row in one operation."""
        bad: list[int] = []
        sums = [0] * len(manifest.checksums)
        scratch = buffer.scratch(self._settings.operation_bytes)
        parts = {row[0].start: row for row in rows}

        def check(whole: Operation) -> None:
            for operation in parts[whole.start]:
                bucket = operation.bucket
                chunk = buffer.read(operation.start, operation.end, scratch)
                sums[bucket] = crc32(chunk, sums[bucket])  # while it is in the cache
                if operation.last:
                    if sums[bucket] != manifest.checksums[bucket]:
                        bad.append(bucket)
                    self._landed(bucket)

        wholes = [Operation(row[0].start, row[-1].end) for row in rows]
        self._move(buffer, wholes, deadline, landed=check)
        if bad:  # only now: leaving early would stall the other receivers
            raise wrong_checksums(bad, manifest, numbers)

    def drain(self) -> None:
        """Wait for what is still in flight, as long as the transport takes, and unpin it."""
        drain(self._stranded)

    def _move(
        self,
        buffer: Buffer,
        operations: Sequence[Operation],
        deadline: float,
        *,
        landed: Callable[[Operation], None] = lambda _: None,
    ) -> None:
        """Keep operations in flight; what has landed is handled while the next ones fly."""
        flying: deque[tuple[Operation, Work]] = deque()
        waiting = deque(operations)

        def fill() -> None:
            while waiting and len(flying) < self._settings.in_flight:
                self._stop()
                operation = waiting.popleft()
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimedOutError(f"no time is left at byte {operation.start}")
                seconds = min(left, self._settings.operation_timeout)
                flying.append((operation, self._begin(buffer, operation, seconds)))

        with buffer.pin():
            try:
                fill()
                while flying:
                    operation, work = flying[0]
                    try:
                        work.wait()
                    finally:
                        flying.popleft()  # it has ended, well or not
                        del work  # the transport would live as long as the error's traceback
                    fill()
                    landed(operation)
            finally:  # the transport may still touch the buffer
                self._stranded.extend((work, buffer.pin()) for _, work in flying)
                flying.clear()

    def _begin(self, buffer: Buffer, operation: Operation, seconds: float) -> Work:
        if self._direct is not None and buffer.device != "cpu":
            return self._direct(buffer.window(operation.start, operation.end), seconds)
        return self._start(buffer.memory[operation.start : operation.end], seconds)

    def _operations(self, manifest: WeightManifest) -> list[Operation]:
        size = self._settings.operation_bytes
        return [
            Operation(first, min(first + size, end), bucket, first + size >= end)
            for bucket, (start, end) in enumerate(manifest.buckets())
            for first in range(start, end, size)
        ]

    def _together(self, operations: Sequence[Operation], numbers: Sequence[int]) -> list[Row]:
        """Rows of what one operation can move, if it lies together at the sender too."""
        rows: list[Row] = []
        for operation in operations:
            row = rows[-1] if rows else ()
            fits = row and operation.end - row[0].start <= self._settings.operation_bytes
            if fits and numbers[operation.bucket] - numbers[row[-1].bucket] <= 1:
                rows[-1] = (*row, operation)
            else:
                rows.append((operation,))
        return rows


def wrong_checksums(
    bad: Sequence[int], manifest: WeightManifest, numbers: Sequence[int] | None = None
) -> ChecksumMismatchError:
    """Names the buckets that are wrong, by `numbers` if they are some of a whole."""
    named = list(bad) if numbers is None else [numbers[bucket] for bucket in bad]
    return ChecksumMismatchError(f"wrong checksum in buckets {named} of {len(manifest.checksums)}")
