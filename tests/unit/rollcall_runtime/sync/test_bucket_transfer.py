"""Buckets in flight: how many, in what order, and what becomes of those that fail."""

import time
from dataclasses import dataclass, field, replace

import pytest

from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.bucket_transfer import BucketTransfer, TransferHandle
from rollcall_runtime.sync.digests import bucket_digests
from rollcall_runtime.sync.engine import SyncSettings
from rollcall_runtime.sync.errors import AbortedError, DigestMismatchError, TimedOutError
from rollcall_runtime.sync.memory.buffers import HostBuffer

BUCKET = 10
OPERATION = 4


@dataclass
class Wire:
    """What was sent, chunk by chunk; `receiving` reads the same chunks again."""

    chunks: list[bytes] = field(default_factory=list)
    patience: list[float] = field(default_factory=list)
    begun: int = 0
    flying: int = 0
    most: int = 0
    fail_at: int | None = None
    aborted: bool = False
    receiving: bool = False

    def start(self, chunk: memoryview, seconds: float) -> TransferHandle:
        index = self.begun
        self.begun += 1
        self.flying += 1
        self.most = max(self.most, self.flying)
        self.patience.append(seconds)
        if not self.receiving:
            self.chunks.append(bytes(chunk))
        return Transfer(self, index, chunk)

    def stop(self) -> None:
        if self.aborted:
            raise AbortedError("aborted")

    def mover(self, in_flight: int = 2, operation_bytes: int = OPERATION) -> BucketTransfer:
        settings = SyncSettings(
            operation_bytes=operation_bytes, operation_timeout=1, in_flight=in_flight
        )
        return BucketTransfer(start=self.start, raise_if_aborted=self.stop, settings=settings)


@dataclass
class Transfer:
    wire: Wire
    index: int
    chunk: memoryview

    def wait(self) -> None:
        self.wire.flying -= 1
        if self.index == self.wire.fail_at:
            raise RuntimeError("connection reset")
        if self.wire.receiving:
            self.chunk[:] = self.wire.chunks[self.index]


def soon() -> float:
    return time.monotonic() + 10


def weights(nbytes: int) -> tuple[HostBuffer, WeightManifest]:
    buffer = HostBuffer(nbytes)
    buffer.memory[:] = bytes(index % 251 for index in range(nbytes))
    return buffer, WeightManifest((), nbytes, BUCKET, bucket_digests(buffer.memory, BUCKET))


@pytest.mark.parametrize("nbytes", [0, 1, BUCKET, 3 * BUCKET + 7])
def test_what_is_sent_is_received(nbytes: int) -> None:
    buffer, manifest = weights(nbytes)
    wire = Wire()
    wire.mover().send(buffer, manifest, deadline=soon())
    there = HostBuffer(nbytes)
    replay = Wire(chunks=wire.chunks, receiving=True)
    replay.mover().receive(there, manifest, deadline=soon())
    assert bytes(there.memory) == bytes(buffer.memory)
    assert not buffer.in_use
    assert not there.in_use


def test_no_more_buckets_fly_than_allowed() -> None:
    wire = Wire()
    wire.mover(in_flight=3).send(*weights(10 * BUCKET), deadline=soon())
    assert wire.most == 3


def test_a_wrong_digest_is_reported_after_all_buckets() -> None:
    buffer, manifest = weights(5 * BUCKET)
    wire = Wire()
    wire.mover().send(buffer, manifest, deadline=soon())
    sums = manifest.digests
    wrong = replace(manifest, digests=(sums[0], sums[0], *sums[2:]))
    replay = Wire(chunks=wire.chunks, receiving=True)
    with pytest.raises(DigestMismatchError, match=r"buckets \[1\] of 5"):
        replay.mover().receive(HostBuffer(5 * BUCKET), wrong, deadline=soon())
    assert replay.begun == 1 + 5 * 3  # the header, and three operations for each bucket


def test_another_size_is_refused_before_any_bucket() -> None:
    wire = Wire()
    wire.mover().send(*weights(5 * BUCKET), deadline=soon())
    _, smaller = weights(4 * BUCKET)
    replay = Wire(chunks=wire.chunks, receiving=True)
    with pytest.raises(DigestMismatchError, match="announces"):
        replay.mover().receive(HostBuffer(4 * BUCKET), smaller, deadline=soon())
    assert replay.begun == 1


def test_a_failure_leaves_the_buffer_pinned_until_drained() -> None:
    buffer, manifest = weights(5 * BUCKET)
    wire = Wire(fail_at=2)
    mover = wire.mover()
    with pytest.raises(RuntimeError, match="connection reset"):
        mover.send(buffer, manifest, deadline=soon())
    assert wire.flying == 1
    assert buffer.in_use
    mover.drain()
    assert wire.flying == 0
    assert not buffer.in_use


def test_operations_never_cross_a_bucket() -> None:
    wire = Wire()
    wire.mover().send(*weights(2 * BUCKET + 1), deadline=soon())
    assert [len(chunk) for chunk in wire.chunks[1:]] == [4, 4, 2, 4, 4, 2, 1]


def test_small_buckets_that_follow_each_other_at_the_sender_are_read_at_once() -> None:
    buffer, manifest = weights(5 * BUCKET)
    numbers = (0, 1, 2, 7, 8)  # of the sender's
    bounds = [(0, 20), (20, 30), (30, 50)]
    wire = Wire([bytes(buffer.memory[start:end]) for start, end in bounds], receiving=True)
    target = HostBuffer(5 * BUCKET)
    wire.mover(operation_bytes=2 * BUCKET).fill(
        target, manifest, soon(), numbers=numbers, merge_small=True
    )
    assert target.memory == buffer.memory
    wire.begun, wire.chunks[2] = 0, bytes(20)
    with pytest.raises(DigestMismatchError, match=r"buckets \[7, 8\] of 5"):
        wire.mover(operation_bytes=2 * BUCKET).fill(
            target, manifest, soon(), numbers=numbers, merge_small=True
        )


def test_each_operation_has_a_timeout_of_its_own() -> None:
    wire = Wire()
    wire.mover().send(*weights(BUCKET), deadline=soon())
    assert wire.patience == [1, 1, 1, 1]


def test_no_operation_may_outlast_the_deadline() -> None:
    wire = Wire()
    wire.mover().send(*weights(BUCKET), deadline=time.monotonic() + 0.5)
    assert all(seconds <= 0.5 for seconds in wire.patience)


def test_nothing_starts_after_the_deadline() -> None:
    wire = Wire()
    with pytest.raises(TimedOutError):
        wire.mover().send(*weights(BUCKET), deadline=time.monotonic() - 1)
    assert wire.begun == 0


def test_nothing_new_starts_after_an_abort() -> None:
    wire = Wire(aborted=True)
    with pytest.raises(AbortedError):
        wire.mover().send(*weights(5 * BUCKET), deadline=soon())
    assert wire.begun == 0
