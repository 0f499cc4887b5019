"""Snapshots are copies; what is served changes whole, or not at all."""

import threading
import weakref
from collections.abc import Iterator

import pytest
import torch
from blake3 import blake3

from rollcall_protocol.wire.weight_manifest import TensorSpec, WeightManifest, combine_manifests
from rollcall_runtime.sync.digests import bucket_digests
from rollcall_runtime.sync.errors import ExhaustedError, StagingError
from rollcall_runtime.sync.memory.buffers import BufferPool, HostBuffer
from rollcall_runtime.sync.weights.snapshots import Snapshotter, WeightSnapshot
from rollcall_runtime.sync.weights.staging import StagingArea
from tests.unit.rollcall_protocol.wire.made_up_digests import made_up
from tests.unit.rollcall_runtime.sync.member import digest, digests, odd_tensors, version


def snapshot(seed: int = 1, *, bucket_bytes: int = 1000) -> WeightSnapshot:
    taker = Snapshotter(bucket_bytes=bucket_bytes)
    return taker.take(odd_tensors(seed, 1), timeout=0).finish()


def stage_version(stage: StagingArea, number: int) -> WeightSnapshot:
    """StagingArea what a transport would have brought."""
    source = snapshot(number)
    with stage.staging(version(number), source.manifest, timeout=0) as buffer:
        buffer.memory[:] = source.buffer.memory
    return source


def serve_version(stage: StagingArea, number: int) -> WeightSnapshot:
    source = stage_version(stage, number)
    with stage.committing(version(number)):
        pass
    return source


def served_digests(stage: StagingArea) -> dict[str, str]:
    assert stage.served is not None
    held = stage.held(stage.served)
    assert held is not None
    return digests(held)


def test_every_dtype_and_shape_survives_the_flat_buffer() -> None:
    expected = {name: digest(tensor) for name, tensor in odd_tensors(1, 1)}
    assert digests(snapshot()) == expected


def test_tensors_are_aligned_and_do_not_overlap() -> None:
    end = 0
    for spec in snapshot().manifest.tensors:
        assert spec.offset % 64 == 0
        assert spec.offset >= end
        end = spec.offset + spec.nbytes


def test_digests_cover_every_byte() -> None:
    taken = snapshot(bucket_bytes=999)
    assert taken.manifest.digests == bucket_digests(taken.buffer.memory, 999)
    assert len(taken.manifest.digests) == -(-taken.buffer.nbytes // 999)


def test_a_snapshot_does_not_follow_the_model() -> None:
    weight = torch.ones(10)
    taken = Snapshotter(bucket_bytes=64).take([("w", weight)], timeout=0).finish()
    weight.zero_()
    assert dict(taken.tensors())["w"].sum() == 10


def test_pieces_of_a_tensor_are_put_together_in_their_order() -> None:
    whole = torch.arange(20.0).reshape(5, 4)
    pieces = [
        Snapshotter(bucket_bytes=64).take([("w", part)], timeout=0).finish()
        for part in (whole[:3], whole[3:])
    ]
    manifest = combine_manifests([piece.manifest for piece in pieces])
    buffer = HostBuffer(manifest.total_bytes)
    for piece, (start, end) in zip(pieces, manifest.bounds(), strict=True):
        buffer.memory[start:end] = piece.buffer.memory
    ((name, found),) = WeightSnapshot(manifest, buffer.hold()).tensors()
    assert name == "w"
    assert torch.equal(found, whole)


def test_a_model_without_tensors_is_a_model() -> None:
    taken = Snapshotter(bucket_bytes=64).take([], timeout=0).finish()
    assert taken.manifest.digests == ()
    assert dict(taken.tensors()) == {}


def test_two_tensors_of_one_name_are_refused() -> None:
    tensors = [("w", torch.ones(1)), ("w", torch.ones(2))]
    with pytest.raises(ValueError, match="same name"):
        Snapshotter(bucket_bytes=64).take(tensors, timeout=0)


def test_tensors_that_are_announced_are_copied_one_by_one() -> None:
    """So that two of them exist at most: whole tensors of a sharded model are gathered."""
    alive: list[weakref.ref[torch.Tensor]] = []

    def gathered() -> Iterator[tuple[str, torch.Tensor]]:
        for number in range(4):
            assert sum(reference() is not None for reference in alive) <= 1
            tensor = torch.full((3,), float(number))
            alive.append(weakref.ref(tensor))
            yield str(number), tensor
            del tensor

    layout = [(str(number), torch.empty(3, device="meta")) for number in range(4)]
    taken = Snapshotter(bucket_bytes=64).take(gathered(), layout=layout, timeout=0).finish()
    assert {name: float(tensor[0]) for name, tensor in taken.tensors()} == {
        str(number): number for number in range(4)
    }


@pytest.mark.parametrize(
    "tensors",
    [
        [("w", torch.ones(2))],
        [("v", torch.ones(3))],
        [("w", torch.ones(3, dtype=torch.bfloat16))],
        [],
        [("w", torch.ones(3)), ("x", torch.ones(3))],
    ],
)
def test_tensors_that_are_not_as_announced_are_refused(
    tensors: list[tuple[str, torch.Tensor]],
) -> None:
    taker = Snapshotter(bucket_bytes=64)
    layout = [("w", torch.empty(3, device="meta"))]
    with pytest.raises(ValueError, match=r"was to come|argument 2"):
        taker.take(iter(tensors), layout=layout, timeout=0)
    assert taker.state.in_use == 0


def test_a_buffer_that_is_still_sent_is_not_overwritten() -> None:
    taker = Snapshotter(bucket_bytes=64, buffers=2, spare_bytes=0)
    sending = taker.take([("w", torch.full((4,), 1.0))], timeout=0).finish()
    newest = taker.take([("w", torch.full((4,), 2.0))], timeout=0).finish()
    with pytest.raises(ExhaustedError):
        taker.take([("w", torch.full((4,), 3.0))], timeout=0.01)
    assert dict(sending.tensors())["w"].tolist() == [1, 1, 1, 1]
    threading.Timer(0.02, sending.release).start()
    third = taker.take([("w", torch.full((4,), 3.0))], timeout=5).finish()
    assert third.buffer is sending.buffer
    assert dict(newest.tensors())["w"].tolist() == [2, 2, 2, 2]


def test_a_draft_that_is_dropped_gives_its_buffer_back() -> None:
    taker = Snapshotter(bucket_bytes=64, buffers=1)
    taker.take([("w", torch.ones(4))], timeout=0)
    assert taker.state.in_use == 0


def test_staging_leaves_the_served_weights_alone() -> None:
    stage = StagingArea()
    first = serve_version(stage, 1)
    stage_version(stage, 2)
    assert stage.served == version(1)
    assert served_digests(stage) == digests(first)


def test_a_commit_serves_what_was_staged() -> None:
    stage = StagingArea()
    serve_version(stage, 1)
    second = stage_version(stage, 2)
    with stage.committing(version(2)) as snapshot_:
        assert digests(snapshot_) == digests(second)
        assert stage.served == version(1)
    assert stage.served == version(2)
    assert served_digests(stage) == digests(second)


def test_digests_are_blake3_of_each_whole_bucket() -> None:
    data = bytes(range(256)) * 3
    expected = tuple(
        blake3(data[start : start + 100]).hexdigest(length=16) for start in range(0, len(data), 100)
    )
    assert bucket_digests(memoryview(data), 100) == expected


def test_a_failed_transfer_stages_nothing() -> None:
    stage = StagingArea()
    first = serve_version(stage, 1)
    source = snapshot(2)

    def receive_half() -> None:
        with stage.staging(version(2), source.manifest, timeout=0) as buffer:
            buffer.memory[:1000] = source.buffer.memory[:1000]
            raise ConnectionError("lost")

    with pytest.raises(ConnectionError):
        receive_half()
    with pytest.raises(StagingError, match="staged is no version"), stage.committing(version(2)):
        pass
    assert served_digests(stage) == digests(first)
    assert stage.state.in_use == 1


def test_a_failed_apply_keeps_the_old_weights() -> None:
    stage = StagingArea()
    first = serve_version(stage, 1)
    stage_version(stage, 2)
    with pytest.raises(MemoryError), stage.committing(version(2)):
        raise MemoryError
    assert stage.served == version(1)
    assert served_digests(stage) == digests(first)
    assert stage.state.in_use == 1


def test_only_the_version_staged_last_can_be_committed() -> None:
    stage = StagingArea()
    stage_version(stage, 1)
    stage_version(stage, 2)
    with pytest.raises(StagingError, match="is not staged"), stage.committing(version(1)):
        pass
    assert stage.state.in_use == 1


def test_two_buffers_are_enough_for_ever() -> None:
    stage = StagingArea(buffers=2, spare_bytes=0)
    for number in range(1, 6):
        serve_version(stage, number)
    assert stage.state.buffers == 2


def test_a_pinned_old_version_survives_later_commits() -> None:
    stage = StagingArea(buffers=3, spare_bytes=0)
    first = serve_version(stage, 1)
    held = stage.held(version(1))
    assert held is not None
    for number in (2, 3, 4):
        serve_version(stage, number)
    assert digests(held) == digests(first)
    assert stage.held(version(1)) is None


def test_discarding_frees_the_buffer() -> None:
    stage = StagingArea()
    stage_version(stage, 1)
    stage.discard()
    assert stage.state.in_use == 0


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (TensorSpec("w", "float3", (1,), 0, 1), "no dtype 'float3'"),
        (TensorSpec("w", "float16", (2, 4), 0, 32), r"32 bytes are not \[2, 4\] of float16"),
        (TensorSpec("w", "float32", (3, 4), 0, 32), r"32 bytes are not \[3, 4\] of float32"),
    ],
)
def test_a_tensor_that_cannot_be_read_is_an_error_of_this_process(
    spec: TensorSpec, problem: str
) -> None:
    hold = BufferPool(limit=1).take(64, timeout=0)
    manifest = WeightManifest((spec,), 64, 64, made_up(0))
    with pytest.raises(StagingError, match=f"tensor w: .*{problem}") as caught:
        dict(WeightSnapshot(manifest, hold).tensors())
    assert caught.value.own_fault
