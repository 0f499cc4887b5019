"""Members that lie or send what cannot be: refused, counted, and the others are served."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import WSMessage, WSMsgType

from rollcall_protocol import pod_contract
from rollcall_protocol.membership.message_check import MAX_PARTS_AHEAD
from rollcall_protocol.wire.ids import Lineage, MemberId, SessionId, Version
from rollcall_protocol.wire.messages import (
    Ack,
    AckPhase,
    CaughtUp,
    Hello,
    MemberMessage,
    PartDigests,
    SnapshotPartReady,
    dumps,
)
from rollcall_protocol.wire.weight_manifest import WeightManifest
from tests.unit.rollcall_protocol.wire.made_up_digests import made_up
from tests.unit.rollcall_runtime.coordinator.fake_group import (
    ADDRESS,
    Group,
    eventually,
    with_bounds,
)
from tests.unit.rollcall_runtime.credentials import bearer

MIB = 1 << 20
FAST = with_bounds(settle=0.05)  # no pod of the roster that stays away is waited for
PART = WeightManifest((), 300, MIB, made_up(7))
HELLO = Hello("job-uid", "default", MemberId("uid-a", "b1"), "a", "pool", ADDRESS, "")
OUTSIDER = MemberId("uid-outsider", "b1")
MINE = Lineage(1, 1)
HALF = "\ud800"  # of a surrogate pair: JSON may hold it, and UTF-8 cannot


async def greet(group: Group, text: str) -> WSMessage:
    """Open a stream as pod a, say `text` first, and wait for the stream's end: what is said."""
    url = group.url(pod_contract.MEMBER_STREAM_ROUTE)
    headers = bearer(group.token("a"))
    async with group.http.ws_connect(url, headers=headers) as socket:
        await socket.send_str(text)
        return await socket.receive(timeout=5)


async def trains(group: Group) -> bool:
    """Whether a version still reaches an honest member."""
    before = len(group.counts.publications)
    await group.publish(before + 1)
    return len(group.counts.publications) == before + 1


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"job_uid": "other"}, "bad_hello"),
        ({"group": "other"}, "bad_hello"),
        ({"pod": "b"}, "impersonated"),
        ({"pod": "b", "member": MemberId("uid-b", "b1")}, "impersonated"),
        ({"pool": "other"}, "bad_hello"),
        ({"address": ""}, "bad_hello"),
        ({"pod": "a" * 300}, "impersonated"),
        ({"descriptor": "a" * 2**19}, "bad_hello"),
        ({"weights_port": 2**16}, "bad_hello"),
        ({"weights_port": 6443}, "bad_hello"),  # requests to rollouts would go there
        ({"held": Version(MINE, 10**9)}, "bad_version"),
        ({"held": Version(MINE, -1)}, "bad_version"),
        ({"sender": 1}, "impersonated"),
        ({"sender": 10**6, "member": OUTSIDER}, "impersonated"),
        ({"sender": -1}, "impersonated"),
    ],
)
async def test_a_hello_that_cannot_be_true_is_refused(
    tmp_path: Path, changes: dict[str, Any], what: str
) -> None:
    async with Group(tmp_path, config=FAST, senders=2) as group:
        await group.push(1, "a", "b")
        await group.join("b")
        sender = await group.join("job-trainer-1", sender=1)
        await group.publish_with(sender, PART)
        await greet(group, dumps(replace(HELLO, **changes)))
        assert group.counts.refusals == [what]
        assert group.coordinator.connections.pods == {"uid-b", "uid-job-trainer-1"}
        await group.publish_with(sender, PART)


@pytest.mark.parametrize(
    "changes",
    [
        *({name: HALF} for name in ("job_uid", "group", "pod", "pool", "address", "shard")),
        {"descriptor": HALF},
        {"member": {"pod_uid": HALF, "boot_id": "b1"}},
        {"member": {"pod_uid": "uid-a", "boot_id": "b1", HALF: 1}},
        {HALF: HALF},
    ],
)
async def test_a_hello_with_half_of_a_surrogate_pair_is_answered_with_a_reason(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    async with Group(tmp_path, config=FAST) as group:
        await group.push(1, "a")
        end = await greet(group, json.dumps(json.loads(dumps(HELLO)) | changes))
        assert end.type is WSMsgType.CLOSE
        assert end.extra


@pytest.mark.parametrize("sender", [None, 0, 2, -1])
async def test_a_pod_of_the_trainer_takes_its_own_ranks_place_and_no_other(
    tmp_path: Path, sender: int | None
) -> None:
    async with Group(tmp_path, config=FAST, senders=3) as group:
        await group.push(1)
        liar = await group.join("job-trainer-1", sender=sender)
        await eventually(lambda: liar.socket.closed)
        assert group.counts.refusals == ["impersonated"]
        await group.join("job-trainer-1", sender=1)
        await eventually(lambda: group.coordinator.connections.pods == {"uid-job-trainer-1"})


async def test_no_rank_takes_a_seat_of_a_sender_where_rank_0_sends_alone(tmp_path: Path) -> None:
    async with Group(tmp_path, config=FAST, senders=1, trainers=2) as group:
        await group.push(1)
        liar = await group.join("job-trainer-1", sender=1)
        await eventually(lambda: liar.socket.closed)
        assert group.counts.refusals == ["bad_sender"]


@pytest.mark.parametrize(
    "message",
    [
        CaughtUp(Version(MINE, 10**9)),
        Ack(SessionId(1, 1, 1), AckPhase.COMMIT, Version(MINE, 10**9)),
    ],
)
async def test_a_version_of_the_future_makes_no_member_in_sync(
    tmp_path: Path, message: MemberMessage
) -> None:
    async with Group(tmp_path, config=FAST) as group:
        await group.push(1, "a", "b")
        await group.join("b")
        await group.publish(0)
        liar = await group.join("a")
        await liar.say(message)
        await eventually(lambda: "bad_version" in group.counts.refusals)
        machine = group.coordinator.groups["default"].machine
        held = machine.members.by_pod["uid-a"].held
        assert held is None or held.number == 0
        assert await trains(group)


@pytest.mark.parametrize(
    "message",
    [
        SnapshotPartReady(0, WeightManifest((), 300, 7, made_up(0) * 43)),
        SnapshotPartReady(0, PART, WeightManifest((), 30, 7, made_up(0) * 5)),
        SnapshotPartReady(0, replace(PART, parts=(100, 200), digests=made_up(7, 7))),
        SnapshotPartReady(MAX_PARTS_AHEAD + 1, PART),
        SnapshotPartReady(-1, PART),
    ],
)
async def test_a_part_that_does_not_fit_the_job_is_not_taken(
    tmp_path: Path, message: SnapshotPartReady
) -> None:
    async with Group(tmp_path, config=FAST, senders=2) as group:
        await group.push(1)
        sender = await group.join("job-trainer-1", sender=1)
        await sender.say(message)
        await eventually(lambda: group.counts.refusals == ["bad_part"])
        await group.publish_with(sender, PART)


@pytest.mark.parametrize(
    "message", [SnapshotPartReady(0, PART), PartDigests(Version(Lineage(0, 1), 0), made_up(1))]
)
async def test_a_rollout_has_no_part_of_the_weights(
    tmp_path: Path, message: SnapshotPartReady | PartDigests
) -> None:
    async with Group(tmp_path, config=FAST) as group:
        await group.push(1, "a")
        liar = await group.join("a")
        await liar.say(message)
        await eventually(lambda: group.counts.refusals == ["bad_part"])
        assert await trains(group)


async def test_a_short_message_that_claims_2_40_buckets_is_malformed(tmp_path: Path) -> None:
    async with Group(tmp_path, config=FAST, senders=2) as group:
        await group.push(1)
        liar = await group.join("job-trainer-1", sender=1)
        claim = json.loads(dumps(SnapshotPartReady(0, PART)))
        claim["part"] |= {"total_bytes": 2**40, "bucket_bytes": 1}
        await liar.socket.send_str(json.dumps(claim))
        await eventually(lambda: liar.socket.closed)
        assert group.counts.refusals == ["malformed"]
        sender = await group.join("job-trainer-1", sender=1, boot="b2")
        await group.publish_with(sender, PART)


async def test_after_a_restart_numbers_do_not_begin_above_what_a_member_makes_up(
    tmp_path: Path,
) -> None:
    async with Group(tmp_path, config=FAST) as group:
        await group.push(1, "a", "b")
        held = Version(Lineage(0, 1), 2**62)
        await greet_and_stay(group, replace(HELLO, held=held))
        assert (await group.coordinator.ready()).number == 0


async def greet_and_stay(group: Group, hello: Hello) -> None:
    url = group.url(pod_contract.MEMBER_STREAM_ROUTE)
    socket = await group.http.ws_connect(url, headers=bearer(group.token(hello.pod)))
    await socket.send_str(dumps(hello))
    await eventually(lambda: hello.member.pod_uid in group.coordinator.connections.pods)
