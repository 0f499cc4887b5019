"""Snapshots and stages in device memory: the same promises as in host memory."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rollcall_protocol.job_config import DeltaConfig, EngineRef, GroupConfig, WeightSyncConfig
from rollcall_protocol.wire.ids import MemberId, SessionId
from rollcall_protocol.wire.messages import Seat
from rollcall_protocol.wire.weight_manifest import WeightManifest, combine_manifests
from rollcall_runtime.coordinator.snapshot_sender import SnapshotSender
from rollcall_runtime.membership.part_sender import SnapshotPartSender
from rollcall_runtime.rollout import agent
from rollcall_runtime.sync import bucket_checks
from rollcall_runtime.sync.digests import digest_of
from rollcall_runtime.sync.engine import HOST, Role, SyncSettings
from rollcall_runtime.sync.engines.gloo import GlooEngine
from rollcall_runtime.sync.errors import CatchUpError, ExhaustedError, StagingError
from rollcall_runtime.sync.memory.buffers import FlatBuffer, HostBuffer
from rollcall_runtime.sync.memory.device_buffers import DeviceAllocator
from rollcall_runtime.sync.memory.shared_buffers import SharedBuffer
from rollcall_runtime.sync.multi_sender import open_session
from rollcall_runtime.sync.weights.snapshots import Snapshotter, WeightSnapshot
from rollcall_runtime.sync.weights.staging import StagingArea
from rollcall_runtime.train import snapshot_placement
from rollcall_runtime.train.snapshot_placement import kept_in, make_snapshotter
from tests.doubles import build as doubles
from tests.unit.rollcall_runtime.jobs import job_config
from tests.unit.rollcall_runtime.sync.member import digest, digests, odd_tensors, version
from tests.unit.rollcall_runtime.sync.staging_memory import gpu_memory, torch_memory
from tests.unit.rollcall_runtime.sync.weights.test_catch_up import SEVEN, donor, fetch_seven, holder

_MEMORIES: dict[str, Callable[[], DeviceAllocator | None]] = {
    "fake": torch_memory,
    "cpu": lambda: None,
}


@pytest.fixture(
    params=[torch_memory, pytest.param(gpu_memory, marks=pytest.mark.slow)],
)
def memory(request: pytest.FixtureRequest) -> DeviceAllocator:
    """Torch's, and a double's that the host cannot reach."""
    if request.param is not torch_memory:
        doubles.build()
    made: DeviceAllocator = request.param()
    return made


def snapshotter(
    memory: DeviceAllocator, *, bucket_bytes: int = 1000, keep: frozenset[str] = frozenset()
) -> Snapshotter:
    return Snapshotter(bucket_bytes=bucket_bytes, memory=memory, keep=keep, spare_bytes=0)


def taken(memory: DeviceAllocator, *, bucket_bytes: int = 1000) -> WeightSnapshot:
    taker = snapshotter(memory, bucket_bytes=bucket_bytes)
    return taker.take(odd_tensors(1, 1), timeout=0).finish()


def on_host(seed: int = 1, bucket_bytes: int = 1000) -> WeightSnapshot:
    taker = Snapshotter(bucket_bytes=bucket_bytes)
    return taker.take(odd_tensors(seed, 1), timeout=0).finish()


def test_every_dtype_and_shape_survives(memory: DeviceAllocator) -> None:
    snapshot = taken(memory)
    assert snapshot.buffer.device == memory.device
    assert digests(snapshot) == {name: digest(tensor) for name, tensor in odd_tensors(1, 1)}


def test_its_manifest_is_that_of_the_same_weights_in_host_memory(memory: DeviceAllocator) -> None:
    assert taken(memory, bucket_bytes=999).manifest == on_host(bucket_bytes=999).manifest


@pytest.mark.parametrize("keep", [frozenset(), HOST])
def test_a_bucket_longer_than_the_pieces_that_are_copied_is_summed_whole(
    memory: DeviceAllocator, keep: frozenset[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_checks, "_PIECE_BYTES", 777)
    taker = snapshotter(memory, bucket_bytes=10_000, keep=keep | {memory.device})
    snapshot = taker.take(odd_tensors(1, 1), timeout=0).finish()
    assert snapshot.manifest == on_host(bucket_bytes=10_000).manifest
    start, end = snapshot.manifest.buckets()[3]
    assert digest_of(snapshot.buffer.read(start, end)) == snapshot.manifest.digests[3]


def test_it_does_not_follow_the_model(memory: DeviceAllocator) -> None:
    weight = torch.arange(6.0).reshape(2, 3).t()
    draft = snapshotter(memory).take([("w", weight)], timeout=0)
    expected = weight.clone()
    weight.zero_()
    ((_, copied),) = draft.finish().tensors()
    assert torch.equal(copied, expected)


def test_a_model_without_tensors_is_a_model(memory: DeviceAllocator) -> None:
    snapshot = snapshotter(memory).take([], timeout=0).finish()
    assert snapshot.manifest.digests == ()
    assert dict(snapshot.tensors()) == {}


def test_the_third_snapshot_waits_until_the_first_is_released(memory: DeviceAllocator) -> None:
    taker = snapshotter(memory)
    first, second = (
        taker.take([("w", torch.full((4,), float(number)))], timeout=0).finish()
        for number in (1, 2)
    )
    with pytest.raises(ExhaustedError, match="all 2 weight buffers"):
        taker.take([("w", torch.zeros(4))], timeout=0.01)
    first_buffer = first.buffer
    first.release()
    third = taker.take([("w", torch.full((4,), 3.0))], timeout=0).finish()
    assert third.buffer is first_buffer
    assert dict(second.tensors())["w"].tolist() == [2, 2, 2, 2]


def test_weights_that_stay_on_the_device_alone_have_no_host_copy(memory: DeviceAllocator) -> None:
    snapshot = taken(memory)
    assert snapshot.buffer_in(frozenset({"cpu", memory.device})) is snapshot.buffer
    with pytest.raises(StagingError, match=f"in {memory.device} memory, not in memory of: cpu"):
        snapshot.buffer_in(HOST)


def test_weights_can_be_kept_in_both_memories(memory: DeviceAllocator) -> None:
    taker = snapshotter(memory, keep=HOST | {memory.device})
    snapshot = taker.take(odd_tensors(1, 1), timeout=0).finish()
    host = snapshot.buffer_in(HOST)
    assert bytes(host.memory) == bytes(snapshot.buffer.read(0, host.nbytes))
    assert host.nbytes == snapshot.buffer.nbytes
    shared = snapshot.share()
    snapshot.release()
    assert taker.state.in_use == 2
    shared.release()
    assert taker.state.in_use == 0


def test_weights_kept_in_host_memory_leave_the_device_once_sealed(memory: DeviceAllocator) -> None:
    taker = snapshotter(memory, keep=HOST)
    draft = taker.take(odd_tensors(1, 1), timeout=0)
    assert taker.state.in_use == 2
    snapshot = draft.finish()
    assert taker.state.in_use == 1
    assert snapshot.buffer is snapshot.host
    assert digests(snapshot) == digests(on_host())


def test_a_draft_that_is_dropped_gives_its_buffers_back(memory: DeviceAllocator) -> None:
    taker = snapshotter(memory, keep=HOST | {memory.device})
    taker.take([("w", torch.ones(4))], timeout=0)
    assert taker.state.in_use == 0


def test_weights_are_kept_somewhere(memory: DeviceAllocator) -> None:
    with pytest.raises(ValueError, match="cannot be kept in"):
        snapshotter(memory, keep=frozenset({"moon"}))


def test_a_stage_on_the_device_serves_what_was_committed(memory: DeviceAllocator) -> None:
    stage, source = StagingArea(memory=memory), on_host()
    with stage.staging(version(1), source.manifest, timeout=0) as buffer:
        buffer.write(0, source.buffer.memory)
    with stage.committing(version(1)) as weights:
        assert weights.buffer.device == memory.device
        assert digests(weights) == digests(source)
    assert stage.served == version(1)


@pytest.mark.parametrize("bucket_bytes", [1 << 20, 12_345])
async def test_a_newcomer_catches_up_from_one_device_to_another(
    memory: DeviceAllocator, bucket_bytes: int
) -> None:
    held, stage = taken(memory, bucket_bytes=bucket_bytes), StagingArea(memory=memory)
    async with donor(holder(held)) as address:
        await fetch_seven(held.manifest, address, stage=stage)
    with stage.committing(SEVEN) as weights:
        assert digests(weights) == digests(held)


async def test_a_spoiled_bucket_does_not_reach_the_device(memory: DeviceAllocator) -> None:
    held, stage = taken(memory, bucket_bytes=1 << 20), StagingArea(memory=memory)
    held.buffer.write(12345, memoryview(bytearray([held.buffer.read(12345, 12346)[0] ^ 1])))
    async with donor(holder(held)) as address:
        with pytest.raises(CatchUpError, match="wrong digest in bucket 0"):
            await fetch_seven(held.manifest, address, stage=stage)
    assert stage.state.in_use == 0


@pytest.mark.parametrize("senders", [1, 2])
def test_an_engine_that_cannot_take_device_memory_says_so(senders: int) -> None:
    engine = GlooEngine()
    engine.open(
        member=MemberId("pod-0", "b"),
        address="127.0.0.1",
        role=Role.SENDER,
        settings=SyncSettings(),
    )
    seats = [Seat(MemberId(f"pod-{number}", "b"), f"127.0.0.{number}", "") for number in (1, 2, 3)]
    session = open_session(
        engine, group="job", session=SessionId(1, 1, 0), seats=seats, rank=2, senders=senders
    )
    snapshot = taken(torch_memory())
    assert session.buffer_devices == HOST
    if senders == 1:
        with pytest.raises(
            ValueError, match="gloo moves weights in memory of: cpu; this buffer is in"
        ):
            session.receive(snapshot.buffer, snapshot.manifest, timeout=1)
    session.abort()
    engine.close()


class _Session:
    """Of an engine with these buffer_devices; keeps what it is to send."""

    def __init__(self, *buffer_devices: str) -> None:
        self.buffer_devices = frozenset(buffer_devices)
        self.sent: list[FlatBuffer] = []

    def publish(self, buffer: FlatBuffer, manifest: WeightManifest, *, timeout: float) -> None:
        assert buffer.nbytes == manifest.total_bytes
        assert timeout > 0
        self.sent.append(buffer)


async def test_each_group_is_sent_the_copy_that_its_engine_takes() -> None:
    taker = snapshotter(torch_memory(), keep=frozenset({"cpu", "fake"}))
    snapshot = taker.take(odd_tensors(1, 1), timeout=0).finish()
    sender, part = SnapshotSender(stage_timeout=1), SnapshotPartSender(rank=0, stage_timeout=1)
    sender.offer(version(1), snapshot)
    await part.offer(1, snapshot)
    direct, other = _Session("cpu", "fake"), _Session("cpu")
    manifest, whole = snapshot.manifest, combine_manifests([snapshot.manifest])
    for session in (direct, other):
        made: Any = session
        await sender.transfer(made, version(1), manifest, None)
        await part.transfer(made, version(1), whole, None)
    assert direct.sent == [snapshot.buffer] * 2
    assert other.sent == [snapshot.host] * 2
    assert (snapshot.buffer.device, snapshot.host.device) == ("fake", "cpu")


@pytest.mark.parametrize("place", ["device", "host"])
def test_float32_is_sent_as_bfloat16_where_that_is_asked_and_nothing_else_changes(
    memory: DeviceAllocator, place: str
) -> None:
    where = memory if place == "device" else None
    taker = Snapshotter(bucket_bytes=1000, memory=where, spare_bytes=0, dtype=torch.bfloat16)
    given = odd_tensors(1, 1)
    snapshot = taker.take(given, timeout=0, layout=[(n, t.to("meta")) for n, t in given]).finish()
    rounded = [(n, t.bfloat16() if t.dtype == torch.float32 else t) for n, t in given]
    assert digests(snapshot) == {name: digest(tensor) for name, tensor in rounded}
    assert {spec.name: spec.nbytes for spec in snapshot.manifest.tensors} == {
        name: tensor.nbytes for name, tensor in rounded
    }


def test_a_device_that_is_not_there_is_done_without() -> None:
    taker = make_snapshotter(sync_of(staging="Device"), senders=1, device="cpu")
    snapshot = taker.take(odd_tensors(1, 1), timeout=0).finish()
    assert snapshot.buffer is snapshot.host


@pytest.mark.parametrize(
    ("engine", "places"), [("gloo", ["cpu"]), ("nccl", ["fake"]), ("mixed", ["fake", "cpu"])]
)
def test_the_trainer_snapshots_on_its_device(
    monkeypatch: pytest.MonkeyPatch, engine: str, places: list[str]
) -> None:
    monkeypatch.setattr(snapshot_placement, "device_allocator", lambda _: torch_memory())
    monkeypatch.setattr(snapshot_placement, "kept_in", lambda _, device: frozenset(places))  # noqa: ARG005
    taker = make_snapshotter(sync_of(engine=engine, staging="Device"), senders=1, device="cpu")
    draft = taker.take(odd_tensors(1, 1), timeout=0)
    assert draft._hold.buffer.device == "fake"
    snapshot = draft.finish()
    assert [snapshot.buffer_in(frozenset({place})).device for place in places] == places


@pytest.mark.parametrize(
    ("model", "buffer_devices", "sync", "place"),
    [
        ("fake", {"cpu", "fake"}, {"staging": "Device"}, "fake"),
        ("fake", {"cpu"}, {"staging": "Device"}, "cpu"),  # the engine cannot reach it
        ("cpu", {"cpu", "fake"}, {"staging": "Device"}, "cpu"),  # the model is elsewhere
        ("fake", {"cpu", "fake"}, {"staging": "Host"}, "cpu"),
        ("fake", {"cpu", "fake"}, {"staging": "Device", "delta": DeltaConfig()}, "cpu"),
    ],
)
def test_a_rollout_stages_where_its_model_is_if_weights_can_arrive_there(
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    buffer_devices: set[str],
    sync: dict[str, object],
    place: str,
) -> None:
    monkeypatch.setattr(agent, "device_allocator", lambda device: _MEMORIES[device]())
    parts: Any = SimpleNamespace(
        engine=SimpleNamespace(device=model, reads_shared_memory=False, staged_copies=0),
        sync=SimpleNamespace(engine=SimpleNamespace(buffer_devices=buffer_devices)),
    )
    stage = agent.make_stage(sync_of(**sync), parts)
    with stage.staging(version(1), on_host().manifest, timeout=0) as buffer:
        assert buffer.device == place
    assert parts.engine.staged_copies == (0 if place == "cpu" else agent.STAGED_COPIES)


@pytest.mark.parametrize(("reads", "kind"), [(True, SharedBuffer), (False, HostBuffer)])
def test_it_stages_in_shared_memory_if_another_process_reads_there(
    reads: bool, kind: type[FlatBuffer]
) -> None:
    parts: Any = SimpleNamespace(
        engine=SimpleNamespace(device="cpu", reads_shared_memory=reads),
        sync=SimpleNamespace(engine=SimpleNamespace(buffer_devices=HOST)),
    )
    stage = agent.make_stage(sync_of(), parts)
    with stage.staging(version(1), on_host().manifest, timeout=0) as buffer:
        assert type(buffer) is kind


def sync_of(**changes: object) -> WeightSyncConfig:
    return job_config(weight_sync=changes).weight_sync


def test_snapshots_stay_where_every_group_can_send_them_from() -> None:
    bridged = (GroupConfig("other", EngineRef("gloo", {})),)
    assert kept_in(sync_of(engine="nccl"), device="cuda") == {"cuda"}
    assert kept_in(sync_of(engine="auto"), device="cuda") == {"cuda"}
    assert kept_in(sync_of(engine="gloo"), device="cuda") == {"cpu"}
    assert kept_in(sync_of(engine="nccl", groups=bridged), device="cuda") == {"cuda", "cpu"}
    assert kept_in(sync_of(engine="nccl", delta=DeltaConfig()), device="cuda") == {"cuda", "cpu"}
