"""Versions with checksums: what newcomers fetch from donors has digests all the same."""

from pathlib import Path

import pytest

from rollcall_protocol.wire.ids import Lineage, Version
from rollcall_protocol.wire.messages import PartDigests, SnapshotPartReady
from rollcall_protocol.wire.weight_manifest import BucketCheck, WeightManifest
from rollcall_runtime.coordinator.donor_digests import DonorDigests
from rollcall_runtime.coordinator.sender_parts import SenderParts
from rollcall_runtime.sync import bucket_checks
from rollcall_runtime.sync.digests import digest_of
from rollcall_runtime.sync.errors import SyncError
from rollcall_runtime.sync.memory.buffers import HostBuffer
from rollcall_runtime.sync.weights import snapshots
from rollcall_runtime.sync.weights.snapshots import WeightSnapshot
from tests.unit.rollcall_protocol.wire.made_up_digests import made_up
from tests.unit.rollcall_runtime.coordinator.fake_group import Group, Worker, eventually

MIB = 1 << 20
SEVEN = Version(Lineage(1, 1), 7)
CHECKSUMS = WeightManifest((), MIB, MIB, made_up(5), check=BucketCheck.XXH3)
ZEROS = digest_of(bytes(MIB))  # what the trainer of these tests publishes


async def newcomer(group: Group, epoch: int, pod: str, *others: str) -> Worker:
    await group.push(epoch, *others, pod)
    return await group.join(pod)


async def test_a_newcomer_gets_the_digests_of_what_the_trainer_holds(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        await group.push(1, "a")
        first = await group.join("a")
        await eventually(lambda: len(group.counts.sessions) == 1)
        await group.publish(1, CHECKSUMS)
        assert first.staged == [CHECKSUMS], "a member of the session has checksums"
        late = await newcomer(group, 2, "late", "a")
        await eventually(lambda: late.fetched)
        assert late.fetched == [WeightManifest((), MIB, MIB, (ZEROS,))]


async def test_they_are_computed_once_for_all_newcomers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[bool] = []
    real = bucket_checks.check_buckets

    def counted(buffer: object, size: int, *, cheap: bool) -> object:
        computed.append(cheap)
        return real(buffer, size, cheap=cheap)  # type: ignore[arg-type]

    monkeypatch.setattr(snapshots, "check_buckets", counted)
    async with Group(tmp_path) as group:
        await group.push(1, "a")
        await group.join("a")
        await eventually(lambda: len(group.counts.sessions) == 1)
        await group.publish(1, CHECKSUMS)
        one = await newcomer(group, 2, "one", "a")
        await eventually(lambda: one.fetched)
        two = await newcomer(group, 3, "two", "a", "one")
        await eventually(lambda: two.fetched)
    assert computed == [False]


async def test_a_version_that_is_not_held_has_none_until_it_is() -> None:
    held: dict[Version, WeightSnapshot] = {}
    digests = DonorDigests(held=held.get, parts=SenderParts(1, lambda *_: None), timeout=5)
    with pytest.raises(SyncError, match="no longer holds 7@1"):
        await digests.of(SEVEN, CHECKSUMS)
    held[SEVEN] = WeightSnapshot(CHECKSUMS, HostBuffer(MIB).hold())
    assert (await digests.of(SEVEN, CHECKSUMS)).digests == (ZEROS,)
    assert held[SEVEN].buffer.in_use, "it is kept"


async def test_a_rank_that_does_not_answer_is_waited_for_no_longer_than_that() -> None:
    held = {SEVEN: WeightSnapshot(CHECKSUMS, HostBuffer(MIB).hold())}
    digests = DonorDigests(held=held.get, parts=SenderParts(2, lambda *_: None), timeout=0.05)
    with pytest.raises(SyncError, match="no digests of 7@1"):
        await digests.of(SEVEN, CHECKSUMS)


async def two_ranks(group: Group) -> tuple[Worker, Version]:
    """Rank 1 of the trainer, and a version of which both ranks have a part."""
    await group.push(1, "a")
    await group.join("a")
    second = await group.join("job-trainer-1", sender=1)
    await eventually(lambda: len(group.counts.sessions) == 1)
    await second.say(SnapshotPartReady(0, CHECKSUMS))
    await group.publish(1, CHECKSUMS)
    await eventually(lambda: second.named)
    return second, second.named[0].version


async def test_each_rank_of_the_trainer_is_asked_for_those_of_its_part(tmp_path: Path) -> None:
    async with Group(tmp_path, senders=2) as group:
        second, version = await two_ranks(group)
        late = await newcomer(group, 2, "late", "a")
        await eventually(lambda: second.wanted)
        await second.say(PartDigests(version, made_up(9)))
        await eventually(lambda: late.fetched)
        assert late.fetched[0].digests == (ZEROS, *made_up(9))
        assert late.fetched[0].check is BucketCheck.BLAKE3


@pytest.mark.parametrize("answer", [None, made_up(8, 9), ("no digest",)])
async def test_a_rank_that_cannot_say_is_asked_again(
    tmp_path: Path, answer: tuple[str, ...] | None
) -> None:
    async with Group(tmp_path, senders=2) as group:
        second, version = await two_ranks(group)
        late = await newcomer(group, 2, "late", "a")
        await eventually(lambda: second.wanted)
        await second.say(PartDigests(version, answer))
        await eventually(lambda: len(second.wanted) == 2)
        assert not late.fetched
        await second.say(PartDigests(version, made_up(9)))
        await eventually(lambda: late.fetched)


async def test_a_rank_whose_stream_opens_late_is_asked_then(tmp_path: Path) -> None:
    async with Group(tmp_path, senders=2) as group:
        second, version = await two_ranks(group)
        await second.socket.close()
        await eventually(lambda: not group.coordinator.parts.sends(second.member))
        late = await newcomer(group, 2, "late", "a")
        again = await group.join("job-trainer-1", sender=1, boot="b2")
        await eventually(lambda: again.wanted)
        await again.say(PartDigests(version, made_up(9)))
        await eventually(lambda: late.fetched)
