"""Deltas from the trainer's ranks to a rollout: what is sent, and what a damaged base leads to."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from rollcall_protocol.job_config import DeltaConfig
from rollcall_protocol.wire.ids import Lineage, MemberId, SessionId, Version
from rollcall_protocol.wire.messages import Seat, VersionAssigned, WeightDelta
from rollcall_protocol.wire.weight_manifest import WeightManifest, combine_manifests
from rollcall_runtime.coordinator.snapshot_sender import SnapshotSender
from rollcall_runtime.membership.part_sender import SnapshotPartSender
from rollcall_runtime.rollout.inference_engine import PauseMode
from rollcall_runtime.rollout.served_versions import ServedVersions
from rollcall_runtime.rollout.weight_receiver import WeightReceiver, WeightReceiverSettings
from rollcall_runtime.sync.errors import DigestMismatchError, SyncError
from rollcall_runtime.sync.weights.snapshots import Snapshotter
from rollcall_runtime.sync.weights.staging import StagingArea
from tests.unit.rollcall_protocol.wire.made_up_digests import made_up
from tests.unit.rollcall_runtime.coordinator.fake_group import MemorySession
from tests.unit.rollcall_runtime.rollout.fake_engine import FakeEngine, rollout_metrics

WEIGHTS = 4_000  # in each rank's part
CONFIG = DeltaConfig()


def version(number: int) -> Version:
    return Version(Lineage(1, 1), number)


class Wire(MemorySession):
    """Gives a receiver what the ranks have sent, one after the other."""

    def __init__(self, sent: dict[int, bytes], rank: int) -> None:
        seats = [Seat(MemberId(str(n), "b"), "", "") for n in range(3)]
        super().__init__(session=SessionId(1, 1, 1), seats=seats, rank=rank)
        self._sent = sent

    def publish(self, buffer: Any, manifest: WeightManifest, *, timeout: float) -> None:
        self._sent[self.rank] = bytes(buffer.memory)

    def receive(self, buffer: Any, manifest: WeightManifest, *, timeout: float) -> None:
        buffer.memory[:] = b"".join(part for _, part in sorted(self._sent.items()))


class Job:
    """Two ranks that send their own parts, and a rollout."""

    def __init__(self) -> None:
        self.first = SnapshotSender(stage_timeout=1, delta=CONFIG)
        self.second = SnapshotPartSender(rank=1, stage_timeout=1, delta=CONFIG)
        self.stage = StagingArea()
        bounds = WeightReceiverSettings(PauseMode.KEEP, stage_timeout=1, commit_timeout=1)
        self.rollout = WeightReceiver(
            engine=FakeEngine(),
            stage=self.stage,
            served=ServedVersions(),
            settings=bounds,
            metrics=rollout_metrics(),
            delta=CONFIG,
        )
        self.sent: dict[int, bytes] = {}
        self._snapshotters = [Snapshotter(bucket_bytes=5_000) for _ in range(2)]
        self._weights = [torch.arange(WEIGHTS, dtype=torch.float32) for _ in range(2)]
        self._manifest = WeightManifest((), 0, 5_000, ())

    async def offer(self, number: int, *, changed: tuple[int, ...] = ()) -> WeightDelta | None:
        """Version `number`, in which some weights of each part have `changed`."""
        parts = []
        for weights, snapshotter in zip(self._weights, self._snapshotters, strict=True):
            weights[list(changed)] += 0.25
            parts.append(snapshotter.take([("w", weights)], timeout=0).finish())
        self.first.offer(version(number), parts[0])
        offered = await self.second.offer(number, parts[1])
        self.second.assign_version(VersionAssigned(number, version(number)))
        self._manifest = combine_manifests([part.manifest for part in parts])
        return await self.first.encode(version(number), version(number - 1), [offered.delta])

    async def send(self, number: int, delta: WeightDelta | None) -> None:
        """Stage it on the rollout."""
        for rank, duties in ((0, self.first), (1, self.second)):
            wire = Wire(self.sent, rank)
            await duties.transfer(wire, version(number), self._manifest, delta)
        wire = Wire(self.sent, 2)
        await self.rollout.transfer(wire, version(number), self._manifest, delta)

    async def publish(self, number: int, delta: WeightDelta | None = None) -> None:
        """Stage it, and serve it."""
        await self.send(number, delta)
        await self.rollout.apply(version(number))
        self.first.release_all_but(version(number))

    def serves(self, number: int) -> bool:
        """Whether the rollout has exactly these weights."""
        held = self.stage.held(version(number))
        if held is None:
            return False
        ((_, whole),) = held.tensors()  # the parts are pieces of one tensor
        return torch.equal(whole, torch.cat(self._weights))


@pytest.fixture
async def job() -> AsyncIterator[Job]:
    made = Job()
    assert await made.offer(1) is None, "there is nothing before it"
    await made.publish(1)
    yield made
    made.first.close()
    made.second.close()


async def test_each_rank_sends_what_has_changed_of_its_part(job: Job) -> None:
    for number in (2, 3, 4):
        delta = await job.offer(number, changed=(7, 1_000 + number))
        assert delta is not None
        assert delta.base == version(number - 1)
        await job.publish(number, delta)
        assert job.serves(number)
        assert sum(map(len, job.sent.values())) == delta.manifest.total_bytes < 1_000


async def test_one_rank_that_has_too_many_changes_has_all_send_everything(job: Job) -> None:
    job.second.close()
    assert await job.offer(2, changed=(7,)) is None, "the second has nothing to compare with"
    await job.publish(2)
    assert job.serves(2)


async def test_a_receiver_of_another_version_asks_for_everything(job: Job) -> None:
    delta = await job.offer(2, changed=(7,))
    assert delta is not None
    await job.publish(2)
    with pytest.raises(SyncError, match=r"the delta's base is 1@1\.1, but") as caught:
        await job.send(2, delta)
    assert not caught.value.own_fault


@pytest.mark.parametrize("prepared", [True, False], ids=["copied ahead", "copied late"])
async def test_a_damaged_base_is_detected_and_the_whole_version_repairs_it(
    job: Job, prepared: bool
) -> None:
    held = job.stage.held(version(1))
    assert held is not None
    held.buffer.memory[WEIGHTS] ^= 1
    if prepared:
        job.stage.prepare()
    delta = await job.offer(2, changed=(7,))
    with pytest.raises(DigestMismatchError, match=r"buckets \[0\]") as caught:
        await job.send(2, delta)
    assert caught.value.own_fault, "the others go on without it"
    assert job.stage.served == version(1)
    held.release()
    await job.publish(2)
    assert job.serves(2)


async def test_a_delta_of_other_changes_is_refused(job: Job) -> None:
    delta = await job.offer(2, changed=(7,))
    assert delta is not None
    wrong = replace(delta, manifest=replace(delta.manifest, digests=made_up(1, 2)))
    with pytest.raises(SyncError, match="rank 1 does not hold its part"):
        await job.second.transfer(Wire({}, 1), version(2), job._manifest, wrong)
