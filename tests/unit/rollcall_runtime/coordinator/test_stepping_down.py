"""A coordinator steps down when its name leads to another pod, not because a member says so."""

import socket
from pathlib import Path

import pytest

from rollcall_protocol.wire.ids import SessionId
from rollcall_protocol.wire.job_snapshot import MemberState, SuspicionCause
from rollcall_protocol.wire.messages import SessionRefused
from rollcall_runtime.coordinator.stepping_down import name_leads_elsewhere
from tests.unit.rollcall_runtime.coordinator.fake_group import (
    Group,
    Worker,
    eventually,
    with_bounds,
)

FAST = with_bounds(settle=0.05)
ELSEWHERE = "127.254.254.254"


async def says_another_leads(group: Group, epochs: int) -> Worker:
    """A member of the session says that it follows another coordinator, `epochs` later."""
    await group.push(1, "a", "b")
    liar = await group.join("a")
    await group.join("b")
    await group.coordinator.ready()
    await eventually(lambda: group.counts.sessions)
    mine = group.counts.sessions[-1].session
    await liar.say(SessionRefused(mine, held=SessionId(mine.epoch + epochs, 1, 1)))
    return liar


async def test_a_replaced_coordinator_steps_down_when_a_member_says_so(tmp_path: Path) -> None:
    async with Group(tmp_path, name=ELSEWHERE) as group:
        await says_another_leads(group, 1)
        await eventually(group.coordinator.fenced.is_set)


@pytest.mark.parametrize("epochs", [1, 10**6])
async def test_one_that_was_not_replaced_excludes_that_member_and_serves_the_others(
    tmp_path: Path, epochs: int
) -> None:
    async with Group(tmp_path, config=FAST) as group:
        liar = await says_another_leads(group, epochs)
        await eventually(lambda: liar.socket.closed)
        assert group.counts.refusals == ["bad_session"]
        assert group.counts.suspicions[0][0] is SuspicionCause.REFUSED
        await eventually(lambda: len(group.counts.sessions) == 2)
        await group.publish(0)
        states = {report.pod: report.state for report in group.coordinator.report().members}
        assert states == {"a": MemberState.SUSPECT, "b": MemberState.IN_SYNC}
        assert not group.coordinator.fenced.is_set()


async def test_a_pod_that_is_not_on_the_roster_supersedes_no_coordinator(tmp_path: Path) -> None:
    async with Group(tmp_path, name=ELSEWHERE) as group:
        await group.push(1, "a")
        member, outsider = await group.join("a"), await group.join("outsider")
        await eventually(lambda: group.counts.sessions)
        mine = group.counts.sessions[-1].session
        await outsider.say(SessionRefused(mine, held=SessionId(10**6, 1, 1)))
        await outsider.socket.close()
        await group.publish(0)
        assert not group.coordinator.fenced.is_set()
        assert not member.socket.closed


async def test_a_name_that_cannot_be_resolved_or_has_this_address_too_proves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not await name_leads_elsewhere("no-such-name.invalid", ELSEWHERE)
    assert not await name_leads_elsewhere("0:0:0:0:0:0:0:1", "::1")

    def both(*_: object, **__: object) -> list[object]:
        return [(0, 0, 0, "", (address, 0)) for address in ("127.0.0.9", ELSEWHERE)]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    assert not await name_leads_elsewhere("trainer-0", ELSEWHERE)
    assert await name_leads_elsewhere("trainer-0", "127.0.0.1")
