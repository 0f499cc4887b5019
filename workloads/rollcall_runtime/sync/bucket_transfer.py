"""Transfers a flat buffer in small operations, a few in flight at a time, checked by bucket."""

import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.bucket_checks import ArrivingBuckets, wrong_buckets
from rollcall_runtime.sync.engine import SyncSettings
from rollcall_runtime.sync.errors import DigestMismatchError, TimedOutError
from rollcall_runtime.sync.memory.buffers import Buffer, BufferHold, BufferWindow, HostBuffer

_HEADER = struct.Struct("<8sQQ")  # magic, total_bytes, bucket_bytes
_MAGIC = b"rollcal1"


class TransferHandle(Protocol):
    """A transfer in flight. `wait` blocks until it ended and raises RuntimeError if it failed."""

    def wait(self) -> object: ...


def drain(unfinished: list[tuple[TransferHandle, BufferHold]]) -> None:
    """Wait for each, as long as the transport takes, and release its buffer; empties the list."""
    while unfinished:
        handle, hold = unfinished.pop()
        try:
            handle.wait()
        except RuntimeError:
            continue  # its caller got an error when the transfer failed
        finally:
            hold.release()


@dataclass(frozen=True, slots=True)
class Operation:
    """Bytes [start, end) of the buffer, in `bucket`; `last` completes it."""

    start: int
    end: int
    bucket: int = 0
    last: bool = True


OperationGroup = tuple[Operation, ...]  # transferred as one


class BucketTransfer:
    """Runs one session's transfers; used by one thread.

    `start(chunk, seconds)` begins the transfer of a chunk of host memory, and
    `start_on_device(window, seconds)` of memory that only a device can reach. `raise_if_aborted`
    raises when the session was aborted. `bucket_done(bucket)` is called for each bucket that was
    sent, or received and checked.

    Operations are small so that a transport can abandon one that is stuck early. What a failed
    transfer left in flight is kept, with a hold on its buffer, until `drain` has seen it end.
    """

    def __init__(
        self,
        *,
        start: Callable[[memoryview, float], TransferHandle],
        raise_if_aborted: Callable[[], None],
        settings: SyncSettings,
        bucket_done: Callable[[int], None] = lambda _: None,
        start_on_device: Callable[[BufferWindow, float], TransferHandle] | None = None,
    ) -> None:
        self._start = start
        self._start_on_device = start_on_device
        self._raise_if_aborted = raise_if_aborted
        self._settings = settings
        self._bucket_done = bucket_done
        self._unfinished: list[tuple[TransferHandle, BufferHold]] = []

    def send(self, buffer: Buffer, manifest: WeightManifest, deadline: float) -> None:
        """Send a header and all buckets; `deadline` is on the monotonic clock."""
        header = HostBuffer(_HEADER.size)
        _HEADER.pack_into(header.memory, 0, _MAGIC, manifest.total_bytes, manifest.bucket_bytes)
        self._run(header, [Operation(0, _HEADER.size)], deadline)

        def sent(operation: Operation) -> None:
            if operation.last:
                self._bucket_done(operation.bucket)

        self._run(buffer, self._operations(manifest), deadline, done=sent)

    def receive(self, buffer: Buffer, manifest: WeightManifest, deadline: float) -> None:
        """Receive all buckets, each checked while the next arrives.

        The header comes first because some transports cannot survive two sizes for one transfer.
        """
        header = HostBuffer(_HEADER.size)
        self._run(header, [Operation(0, _HEADER.size)], deadline)
        announced = _HEADER.unpack(header.memory)
        expected = (_MAGIC, manifest.total_bytes, manifest.bucket_bytes)
        if announced != expected:
            raise DigestMismatchError(
                f"the sender announces (magic, bytes, bucket bytes) {announced}, "
                f"the manifest has {expected}"
            )
        self.fill(buffer, manifest, deadline)

    def fill(
        self,
        buffer: Buffer,
        manifest: WeightManifest,
        deadline: float,
        *,
        numbers: Sequence[int] | None = None,
        merge_small: bool = False,
    ) -> None:
        """Receive all buckets, for transports that need no header.

        `numbers` are the sender's numbers of these buckets, if they are some of its buckets.
        `merge_small` transfers small ones that follow each other at the sender in one operation.
        """
        operations = self._operations(manifest)
        groups: list[OperationGroup] = [(operation,) for operation in operations]
        if merge_small:
            groups = self._merged(operations, numbers or range(len(manifest.digests)))
        self.fill_groups(buffer, manifest, groups, deadline, numbers=numbers)

    def fill_groups(
        self,
        buffer: Buffer,
        manifest: WeightManifest,
        groups: Sequence[OperationGroup],
        deadline: float,
        *,
        numbers: Sequence[int] | None = None,
    ) -> None:
        """Receive all buckets, each group of operations as one. Raises DigestMismatchError."""
        bad: list[int] = []
        buckets = ArrivingBuckets(buffer, manifest, longest=self._settings.operation_bytes)
        by_start = {group[0].start: group for group in groups}

        def check(whole: Operation) -> None:
            for operation in by_start[whole.start]:
                bucket = operation.bucket
                buckets.arrived(bucket, operation.start, operation.end)
                if operation.last:
                    if not buckets.is_right(bucket):
                        bad.append(bucket)
                    self._bucket_done(bucket)

        wholes = [Operation(group[0].start, group[-1].end) for group in groups]
        self._run(buffer, wholes, deadline, done=check)
        if bad:  # only now: leaving early would stall the other receivers
            raise wrong_digests(bad, manifest, numbers)

    def drain(self) -> None:
        """Wait for what is still in flight, as long as the transport takes; release its buffer."""
        drain(self._unfinished)

    def _run(
        self,
        buffer: Buffer,
        operations: Sequence[Operation],
        deadline: float,
        *,
        done: Callable[[Operation], None] = lambda _: None,
    ) -> None:
        """Keep operations in flight; handle what has ended while the next ones are in flight."""
        in_flight: deque[tuple[Operation, TransferHandle]] = deque()
        waiting = deque(operations)

        def begin_next() -> None:
            while waiting and len(in_flight) < self._settings.in_flight:
                self._raise_if_aborted()
                operation = waiting.popleft()
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimedOutError(f"timed out at byte {operation.start} of {buffer.nbytes}")
                seconds = min(left, self._settings.operation_timeout)
                in_flight.append((operation, self._begin(buffer, operation, seconds)))

        with buffer.hold():
            try:
                begin_next()
                while in_flight:
                    operation, handle = in_flight[0]
                    try:
                        handle.wait()
                    finally:
                        in_flight.popleft()  # it has ended, well or not
                        del handle  # an error's traceback would keep the transport's object
                    begin_next()
                    done(operation)
            finally:  # the transport may still access the buffer
                self._unfinished.extend((handle, buffer.hold()) for _, handle in in_flight)
                in_flight.clear()

    def _begin(self, buffer: Buffer, operation: Operation, seconds: float) -> TransferHandle:
        if self._start_on_device is not None and buffer.device != "cpu":
            return self._start_on_device(buffer.window(operation.start, operation.end), seconds)
        return self._start(buffer.memory[operation.start : operation.end], seconds)

    def _operations(self, manifest: WeightManifest) -> list[Operation]:
        size = self._settings.operation_bytes
        return [
            Operation(first, min(first + size, end), bucket, first + size >= end)
            for bucket, (start, end) in enumerate(manifest.buckets())
            for first in range(start, end, size)
        ]

    def _merged(
        self, operations: Sequence[Operation], numbers: Sequence[int]
    ) -> list[OperationGroup]:
        """Groups that fit into one operation and whose buckets follow each other at the sender."""
        groups: list[OperationGroup] = []
        for operation in operations:
            group = groups[-1] if groups else ()
            fits = group and operation.end - group[0].start <= self._settings.operation_bytes
            if fits and numbers[operation.bucket] - numbers[group[-1].bucket] <= 1:
                groups[-1] = (*group, operation)
            else:
                groups.append((operation,))
        return groups


def compare_digests(
    buffer: Buffer, manifest: WeightManifest, numbers: Sequence[int] | None = None
) -> None:
    """Raise DigestMismatchError unless a buffer holds what the manifest describes.

    `numbers` are the sender's numbers of these buckets, if they are some of its buckets.
    """
    bad = wrong_buckets(buffer, manifest)
    if bad:
        raise wrong_digests(bad, manifest, numbers)


def wrong_digests(
    bad: Sequence[int], manifest: WeightManifest, numbers: Sequence[int] | None = None
) -> DigestMismatchError:
    """An error that names the wrong buckets, by the sender's `numbers` if those are given."""
    named = list(bad) if numbers is None else [numbers[bucket] for bucket in bad]
    return DigestMismatchError(f"wrong digest in buckets {named} of {len(manifest.digests)}")
