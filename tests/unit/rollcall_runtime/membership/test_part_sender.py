"""A trainer rank's own parts: which are kept, sent and given to newcomers."""

from dataclasses import replace

import pytest
import torch

from rollcall_protocol.wire.ids import Lineage, MemberId, SessionId, Version
from rollcall_protocol.wire.messages import PartDigests, Seat, VersionAssigned
from rollcall_protocol.wire.weight_manifest import WeightManifest, combine_manifests
from rollcall_runtime.membership.part_sender import SnapshotPartSender
from rollcall_runtime.sync.errors import SyncError
from rollcall_runtime.sync.weights.snapshots import Snapshotter, WeightSnapshot
from tests.unit.rollcall_protocol.wire.made_up_digests import made_up
from tests.unit.rollcall_runtime.coordinator.fake_group import MemorySession

OTHER_PART = WeightManifest((), 0, 64, ())


def version(number: int) -> Version:
    return Version(Lineage(1, 1), number)


def part(value: float, *, cheap: bool = False) -> WeightSnapshot:
    taker = Snapshotter(bucket_bytes=64, cheap=cheap)
    return taker.take([("w", torch.tensor([value]))], timeout=0).finish()


def whole(own: WeightSnapshot) -> WeightManifest:
    return combine_manifests([OTHER_PART, own.manifest])


class Recorder(MemorySession):
    """A session that remembers what was sent."""

    def __init__(self) -> None:
        seats = [Seat(MemberId(str(n), "b"), "", "") for n in range(3)]
        super().__init__(session=SessionId(1, 1, 1), seats=seats, rank=1)
        self.sent: list[float] = []

    def publish(self, buffer: object, manifest: WeightManifest, *, timeout: float) -> None:
        memory: memoryview = buffer.memory  # type: ignore[attr-defined]
        self.sent.append(float(torch.frombuffer(memory[:4], dtype=torch.float32)))


@pytest.fixture
def duties() -> SnapshotPartSender:
    return SnapshotPartSender(rank=1, stage_timeout=1)


async def test_the_part_that_a_manifest_describes_is_sent(duties: SnapshotPartSender) -> None:
    parts, session = [part(value) for value in (1.0, 2.0)], Recorder()
    for number, own in enumerate(parts):
        await duties.offer(number, own)
    for number in (1, 0):
        await duties.transfer(session, version(number), whole(parts[number]), None)
    assert session.sent == [2.0, 1.0]


async def test_a_part_that_was_never_sealed_is_refused(duties: SnapshotPartSender) -> None:
    own = part(1.0)
    await duties.offer(0, own)
    wrong = replace(whole(own), digests=made_up(1))
    with pytest.raises(SyncError, match="does not hold its part"):
        await duties.transfer(Recorder(), version(0), wrong, None)


async def test_newcomers_get_a_version_that_has_its_name(duties: SnapshotPartSender) -> None:
    own = part(1.0)
    await duties.offer(0, own)
    assert duties.held(version(7)) is None
    duties.assign_version(VersionAssigned(0, version(7)))
    assert duties.held(version(7)) is own


async def test_the_newest_two_are_kept(duties: SnapshotPartSender) -> None:
    for number in range(4):
        await duties.offer(number, part(float(number)))
        duties.assign_version(VersionAssigned(number, version(number)))
    assert [part.number for part in duties.parts] == [2, 3]
    assert duties.held(version(1)) is None
    duties.close()
    assert duties.held(version(3)) is None


async def test_a_part_with_checksums_has_digests_when_they_are_wanted(
    duties: SnapshotPartSender,
) -> None:
    own = part(1.0, cheap=True)
    await duties.offer(0, own)
    duties.assign_version(VersionAssigned(0, version(7)))
    found = await duties.digests(version(7))
    assert found == PartDigests(version(7), part(1.0).manifest.digests)
    assert own.buffer.in_use, "it is kept"


async def test_a_part_that_is_no_longer_held_has_none(duties: SnapshotPartSender) -> None:
    assert await duties.digests(version(7)) == PartDigests(version(7), None)
