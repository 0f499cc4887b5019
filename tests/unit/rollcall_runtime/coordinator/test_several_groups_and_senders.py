"""Several sync groups in one job, and several senders, over real streams."""

from dataclasses import replace
from pathlib import Path

from rollcall_protocol.job_config import DeltaConfig
from rollcall_protocol.wire.job_snapshot import MemberState
from rollcall_protocol.wire.messages import SnapshotPartReady
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.digests import digest_of
from rollcall_runtime.sync.open_engine import OpenEngine
from tests.unit.rollcall_protocol.wire.made_up_digests import made_up
from tests.unit.rollcall_runtime.coordinator.fake_group import (
    CONFIG,
    Group,
    MemoryEngine,
    eventually,
)

MIB = 1 << 20
OTHER = "other-vendor"
WITH_DELTAS = replace(CONFIG, weight_sync=replace(CONFIG.weight_sync, delta=DeltaConfig()))


def two_groups(folder: Path) -> Group:
    return Group(folder, engines=[OpenEngine(n, MemoryEngine(), "") for n in ("default", OTHER)])


def in_sync(group: Group, *pods: str) -> bool:
    states = {report.pod: report.state for report in group.coordinator.report().members}
    return all(states.get(pod) is MemberState.IN_SYNC for pod in pods)


async def test_a_version_reaches_every_group(tmp_path: Path) -> None:
    async with two_groups(tmp_path) as group:
        await group.push(1, "a", f"b@{OTHER}")
        first, second = await group.join("a"), await group.join("b", group=OTHER)
        await eventually(lambda: len(group.counts.sessions) == 2)
        await group.publish(1, WeightManifest((), 200, MIB, made_up(5)))
        assert (len(first.staged), len(second.staged)) == (1, 1)
        assert group.counts.publications[-1].received_bytes == 2 * 200
        await eventually(lambda: in_sync(group, "a", "b"))


async def test_a_change_in_one_group_leaves_the_others_session_alone(tmp_path: Path) -> None:
    async with two_groups(tmp_path) as group:
        await group.push(1, "a", f"b@{OTHER}")
        await group.join("a")
        await group.join("b", group=OTHER)
        await eventually(lambda: len(group.counts.sessions) == 2)
        await group.publish(1)
        before = group.coordinator.groups["default"].machine.session
        await group.push(2, "a", f"b@{OTHER}", f"c@{OTHER}")
        await group.join("c", group=OTHER)
        await eventually(lambda: in_sync(group, "a", "b", "c"))
        assert group.coordinator.groups["default"].machine.session == before
        report = group.coordinator.report()
        assert report.roster_epoch == 2
        assert report.groups[1].session is not None
        assert report.groups[1].session.session.epoch == 2
        assert [group.formed for group in report.groups] == [True, True]
        await group.push(3, "a", f"b@{OTHER}", f"c@{OTHER}", f"late@{OTHER}")
        assert group.coordinator.report().groups[1].formed, (
            "late is not registered: no seat changes"
        )
        assert group.coordinator.report().groups[1].session == report.groups[1].session


async def test_a_member_of_a_group_that_the_job_lacks_is_refused(tmp_path: Path) -> None:
    async with two_groups(tmp_path) as group:
        await group.push(1, "a")
        outsider = await group.join("a", group="unknown")
        await eventually(lambda: outsider.socket.closed)


async def test_several_senders_parts_become_one_version(tmp_path: Path) -> None:
    async with Group(tmp_path, senders=2) as group:
        await group.push(1, "a")
        rollout = await group.join("a")
        second = await group.join("job-trainer-1", sender=1)
        await eventually(lambda: len(group.counts.sessions) == 1)
        await second.say(SnapshotPartReady(0, WeightManifest((), 300, MIB, made_up(7))))
        await group.publish(1, WeightManifest((), 200, MIB, made_up(5)))
        whole = WeightManifest((), 500, MIB, made_up(5, 7), (200, 300))
        assert rollout.staged == [whole]
        assert second.staged == [whole]
        assert group.counts.publications[-1].received_bytes == 500, (
            "no rank of the trainer receives"
        )


async def test_senders_get_a_versions_name_even_if_no_rollout_takes_it(tmp_path: Path) -> None:
    async with Group(tmp_path, senders=2) as group:
        await group.push(1)
        second = await group.join("job-trainer-1", sender=1)
        await eventually(lambda: len(group.counts.sessions) == 1)
        await second.say(SnapshotPartReady(0, WeightManifest((), 300, MIB, made_up(7))))
        await group.publish(1, WeightManifest((), 200, MIB, made_up(5)))
        await eventually(lambda: second.named)
        assert [(part.number, part.version.number) for part in second.named] == [(0, 1)]


async def test_a_part_that_is_sealed_late_is_waited_for(tmp_path: Path) -> None:
    async with Group(tmp_path, senders=2) as group:
        await group.push(1, "a")
        rollout = await group.join("a")
        second = await group.join("job-trainer-1", sender=1)
        for number in (0, 1):
            await second.say(SnapshotPartReady(number, WeightManifest((), 3, MIB, made_up(number))))
        await group.publish(1, WeightManifest((), 2, MIB, made_up(9)))
        await group.publish(2, WeightManifest((), 2, MIB, made_up(8)))
        assert [manifest.digests for manifest in rollout.staged] == [made_up(9, 0), made_up(8, 1)]


async def test_several_senders_deltas_become_one(tmp_path: Path) -> None:
    async with Group(tmp_path, senders=2, config=WITH_DELTAS) as group:
        await group.push(1, "a")
        rollout = await group.join("a")
        second = await group.join("job-trainer-1", sender=1)
        await eventually(lambda: len(group.counts.sessions) == 1)
        part, changes = (
            WeightManifest((), MIB, MIB, made_up(7)),
            WeightManifest((), 30, MIB, made_up(8)),
        )
        own = WeightManifest((), MIB, MIB, (digest_of(bytes(MIB)),))
        for number, delta in enumerate((None, changes, None)):
            await second.say(SnapshotPartReady(number, part, delta))
            await group.publish(number + 1, own)
        first, both, last = rollout.deltas
        assert (first, last) == (None, None), "a part without a delta is sent whole, and so are all"
        assert both is not None
        assert both.base.number == 1
        assert both.manifest.parts[1:] == (30,)
        assert both.manifest.digests[1:] == made_up(8)
        assert both.manifest.total_bytes < 200
