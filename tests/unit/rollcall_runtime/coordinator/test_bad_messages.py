"""A member that sends several bad messages is out for good; honest ones never are."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rollcall_protocol.membership import bad_messages
from rollcall_protocol.membership.bad_messages import MAX_BAD_MESSAGES
from rollcall_protocol.wire.ids import Version
from rollcall_protocol.wire.job_snapshot import MemberState, SuspicionCause
from rollcall_protocol.wire.messages import (
    GenerationProgress,
    PromptCredit,
    PromptLease,
    PromptLeaseReturned,
    Sample,
)
from rollcall_protocol.wire.partial_responses import PartialReport, Response
from rollcall_protocol.wire.reward_errors import RewardError, RewardErrorKind
from tests.unit.rollcall_runtime.coordinator.fake_group import (
    Group,
    Worker,
    eventually,
    with_bounds,
)

BAD = Sample((64,), (-1.0,), (0,), 0.5)
NO_REWARD = RewardError(0, RewardErrorKind.RAISED, "KeyError: 'answer'", "task.py", 12)


@asynccontextmanager
async def two_rollouts(folder: Path) -> AsyncIterator[tuple[Group, Worker, Worker]]:
    async with Group(folder, config=with_bounds(settle=0.05)) as group:
        await group.push(1, "liar", "b")
        liar, b = await group.join("liar"), await group.join("b")
        await group.coordinator.ready()
        # On a busy machine one of them comes after the first session has formed.
        await eventually(lambda: members(group) == 3, seconds=30)
        await group.publish(0)
        yield group, liar, b


def members(group: Group) -> int:
    """Of the newest session, the trainer included."""
    return group.counts.sessions[-1].members if group.counts.sessions else 0


async def leased(worker: Worker) -> PromptLease:
    await worker.say(PromptCredit(1))
    return await asyncio.wait_for(worker.leases.get(), 5)


async def lie(group: Group, liar: Worker, times: int, sample: Sample = BAD) -> None:
    for _ in range(times):
        assert await group.complete(liar, await leased(liar), sample=sample) == 409


def states(group: Group) -> dict[str, MemberState]:
    return {report.pod: report.state for report in group.coordinator.report().members}


async def test_a_flood_of_messages_that_are_well_formed_excludes_its_sender(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bad_messages, "BURST_MESSAGES", 50)
    monkeypatch.setattr(bad_messages, "MESSAGES_PER_SECOND", 1.0)
    async with two_rollouts(tmp_path) as (group, liar, b):
        for _ in range(40):
            await b.say(PromptCredit(0))
        for _ in range(100):
            with contextlib.suppress(OSError):  # the stream is closed by then
                await liar.say(PromptCredit(0))
        await eventually(lambda: states(group)["liar"] is MemberState.SUSPECT)
        assert group.counts.refusals[:MAX_BAD_MESSAGES] == ["too_many_messages"] * MAX_BAD_MESSAGES
        assert states(group)["b"] is MemberState.IN_SYNC


async def test_after_a_few_bad_samples_their_sender_is_out(tmp_path: Path) -> None:
    async with two_rollouts(tmp_path) as (group, liar, b):
        await lie(group, liar, MAX_BAD_MESSAGES - 1)
        assert not group.counts.suspicions
        await lie(group, liar, 1)
        assert group.counts.suspicions[0][0] is SuspicionCause.BAD_MESSAGES
        await eventually(lambda: liar.socket.closed)
        await eventually(lambda: members(group) == 2)  # the trainer and b
        await group.publish(1)
        assert states(group) == {"liar": MemberState.SUSPECT, "b": MemberState.IN_SYNC}
        (suspect,) = (r for r in group.coordinator.report().members if r.pod == "liar")
        assert suspect.why == (
            "BadMessages: 3 bad messages, the last: sample 0: token 64 is none of 64"
        )
        assert await group.complete(b, await leased(b)) == 200


async def test_its_pod_may_not_come_back_and_stays_reported_so_that_it_is_replaced(
    tmp_path: Path,
) -> None:
    async with two_rollouts(tmp_path) as (group, liar, _):
        await lie(group, liar, MAX_BAD_MESSAGES)
        again = await group.join("liar", boot="b2")
        await eventually(lambda: again.socket.closed)
        assert group.counts.refusals[-1] == "excluded_member"
        assert not group.coordinator.missing(), "it is not asked to connect"
        await group.push(2, "b", "liar")
        assert states(group)["liar"] is MemberState.SUSPECT
        await group.push(3, "b", "successor")
        await group.join("successor")
        await eventually(lambda: states(group).get("successor") is MemberState.IN_SYNC)


async def test_what_it_reported_is_not_continued(tmp_path: Path) -> None:
    async with two_rollouts(tmp_path) as (group, liar, b):
        lease = await leased(liar)
        lineage = group.coordinator.lineage
        assert lineage is not None
        tokens = (Response((3,), (-1.0,), (0,)),) * 2
        report = PartialReport(lease.lease_id, Version(lineage, 0), (0, 0), tokens)
        await liar.say(GenerationProgress((report,)))
        await lie(group, liar, MAX_BAD_MESSAGES)
        moved = await leased(b)
        assert (moved.prompt, moved.partial) == (lease.prompt, None)


async def test_messages_that_cannot_be_read_count_on_each_new_stream(tmp_path: Path) -> None:
    async with two_rollouts(tmp_path) as (group, liar, _):
        streams = [liar]
        for number in range(1, MAX_BAD_MESSAGES + 1):
            await streams[-1].socket.send_str("[" * 10)
            await eventually(lambda: streams[-1].socket.closed)
            if number < MAX_BAD_MESSAGES:
                streams.append(await group.join("liar"))
        assert group.counts.refusals == ["malformed"] * MAX_BAD_MESSAGES
        (suspect,) = (r for r in group.coordinator.report().members if r.pod == "liar")
        assert suspect.cause is SuspicionCause.BAD_MESSAGES


async def test_late_doubled_and_returned_prompts_and_rewards_of_a_users_function_are_no_lies(
    tmp_path: Path,
) -> None:
    async with two_rollouts(tmp_path) as (group, honest, _):
        for _ in range(2 * MAX_BAD_MESSAGES):
            lease = await leased(honest)
            assert await group.complete(honest, lease) == 200
            assert await group.complete(honest, lease) == 409, "the same again"
            await honest.say(PromptLeaseReturned(lease.lease_id))
            await honest.say(GenerationProgress((PartialReport(lease.lease_id),)))
            group.prompts._ledger.take_batch(0)
            lease = await leased(honest)
            assert await group.complete(honest, lease, errors=(NO_REWARD,)) == 200
        await group.publish(1)
        assert not group.counts.suspicions
        assert states(group) == {"liar": MemberState.IN_SYNC, "b": MemberState.IN_SYNC}


@pytest.mark.parametrize("pod", ["a", "b"])
async def test_who_claims_another_pods_name_costs_that_pod_nothing(
    tmp_path: Path, pod: str
) -> None:
    async with two_rollouts(tmp_path) as (group, _, _b):
        for _ in range(2 * MAX_BAD_MESSAGES):
            forged = await group.join(pod, sender=7)
            await eventually(lambda: forged.socket.closed)  # noqa: B023 - at once
        assert not group.counts.suspicions
        assert states(group)["b"] is MemberState.IN_SYNC


async def test_completions_that_are_none_exclude_their_sender(tmp_path: Path) -> None:
    huge = Sample((2**70,), (-1.0,), (0,), 0.5)  # no integer of the wire
    async with two_rollouts(tmp_path) as (group, liar, _):
        lease = await leased(liar)
        for _ in range(MAX_BAD_MESSAGES):
            assert states(group)["liar"] is MemberState.IN_SYNC
            assert await group.complete(liar, lease, sample=huge) == 400
        await eventually(lambda: states(group)["liar"] is MemberState.SUSPECT)
        (report,) = (r for r in group.coordinator.report().members if r.pod == "liar")
        assert report.cause is SuspicionCause.BAD_MESSAGES
        assert "a completion that is none" in report.reason
        assert states(group)["b"] is MemberState.IN_SYNC
