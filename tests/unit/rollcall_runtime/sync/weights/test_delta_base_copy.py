"""The copy that the next delta is put into: when there is one, and whose buffer it takes."""

import threading

import pytest

from rollcall_protocol.wire.ids import Lineage, Version
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.digests import bucket_digests
from rollcall_runtime.sync.errors import SyncError
from rollcall_runtime.sync.memory.buffers import BufferPool, HostBuffer
from rollcall_runtime.sync.weights import staging
from rollcall_runtime.sync.weights.staging import DeltaBaseCopy, StagingArea

SIZE = 100


def version(number: int) -> Version:
    return Version(Lineage(1, 1), number)


def filled(value: int) -> HostBuffer:
    buffer = HostBuffer(SIZE)
    buffer.memory[:] = bytes([value]) * SIZE
    return buffer


def serve(stage: StagingArea, number: int) -> WeightManifest:
    """StagingArea and commit weights whose bytes are the version's number."""
    memory = filled(number).memory
    manifest = WeightManifest((), SIZE, SIZE, bucket_digests(memory, SIZE))
    with stage.staging(version(number), manifest, timeout=0) as buffer:
        buffer.memory[:] = memory
    with stage.committing(version(number)):
        pass
    return manifest


def test_a_copy_made_ahead_is_what_the_delta_is_put_into() -> None:
    stage = StagingArea(buffers=2, spare_bytes=0)
    manifest = serve(stage, 1)
    stage.prepare()
    with stage.patching(version(2), manifest, base=version(1), timeout=0) as (buffer, base):
        assert base is None, "nothing is left to copy"
        assert bytes(buffer.memory) == bytes([1]) * SIZE
        buffer.memory[0] = 2
    served = stage.held(version(1))
    assert served is not None
    assert served.buffer.memory[0] == 1, "what is served stays as it is"


def test_without_one_the_base_is_lent_to_be_copied() -> None:
    stage = StagingArea(buffers=2, spare_bytes=0)
    manifest = serve(stage, 1)
    with stage.patching(version(2), manifest, base=version(1), timeout=0) as (buffer, base):
        assert base is not None
        assert bytes(base.buffer.memory) == bytes([1]) * SIZE
        assert buffer is not base.buffer


def test_a_base_that_is_not_served_is_refused() -> None:
    stage = StagingArea()
    manifest = serve(stage, 1)
    with (
        pytest.raises(SyncError, match="the delta's base is 3@"),
        stage.patching(version(4), manifest, base=version(3), timeout=0),
    ):
        pass


def test_a_whole_version_takes_the_buffer_of_the_copy() -> None:
    stage = StagingArea(buffers=2, spare_bytes=0)
    serve(stage, 1)
    stage.prepare()
    serve(stage, 2)
    assert stage.state.buffers == 2
    assert stage.served == version(2)


def test_a_copy_of_another_version_is_not_used() -> None:
    pool = BufferPool(limit=1)
    spare = DeltaBaseCopy(pool)
    spare.make(version(1), filled(1))
    assert spare.take(version(2)) is None
    assert pool.state.in_use == 0


def test_without_a_free_buffer_there_is_no_copy() -> None:
    pool = BufferPool(limit=1)
    spare = DeltaBaseCopy(pool)
    with pool.take(SIZE, timeout=0):
        spare.make(version(1), filled(1))
    assert spare.take(version(1)) is None


def test_a_copy_that_is_not_wanted_any_more_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole version is coming, and waits for one piece at most."""
    begun, go_on = threading.Event(), threading.Event()
    pieces: list[int] = []

    def slowly(target: object, source: object) -> None:
        pieces.append(1)
        begun.set()
        go_on.wait(5)

    monkeypatch.setattr(staging, "_PIECE_BYTES", 10)
    monkeypatch.setattr("numpy.copyto", slowly)
    pool = BufferPool(limit=1)
    spare = DeltaBaseCopy(pool)
    making = threading.Thread(target=spare.make, args=(version(1), filled(1)))
    making.start()
    assert begun.wait(5)
    dropping = threading.Thread(target=spare.drop)
    dropping.start()
    while not spare._unwanted.is_set():
        dropping.join(0.001)
    go_on.set()
    making.join(5)
    dropping.join(5)
    assert len(pieces) == 1
    assert pool.state.in_use == 0
