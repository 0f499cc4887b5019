"""The coordinator over real sockets: who may speak, how sessions form, where prompts go."""

import asyncio
import ssl
import time
from pathlib import Path

import pytest

from rollcall_protocol import pod_contract
from rollcall_protocol.wire.ids import Lineage, Version
from rollcall_protocol.wire.job_snapshot import MemberState, SessionCause, SuspicionCause
from rollcall_protocol.wire.messages import PromptCredit
from rollcall_runtime.sync.weights.tickets import sign_ticket
from rollcall_runtime.worker.identity.tls import ServerCertificate, client_context
from tests.certificates import authority, certificate_of, show
from tests.unit.rollcall_runtime.coordinator.fake_group import (
    ADDRESS,
    Group,
    Worker,
    eventually,
    with_bounds,
)
from tests.unit.rollcall_runtime.credentials import bearer


async def test_a_roster_counts_only_with_the_operators_token_and_a_newer_epoch(
    tmp_path: Path,
) -> None:
    async with Group(tmp_path) as group:
        status, answer = await group.push(3, "a", token=group.token("a"))
        assert (status, answer["reason"]) == (403, "not_allowed")
        assert (await group.put({"epoch": 3}))[0] == 400
        assert await group.push(3, "a") == (200, {})
        assert await group.push(3, "a") == (200, {}), "the same again"
        status, answer = await group.push(2, "a")
        assert (status, answer["epoch"]) == (409, 3)
        assert (await group.push(3, "a", "b"))[0] == 409, "same epoch, another roster"
        expected = ["not_allowed", "malformed", "stale_roster", "stale_roster"]
        assert group.counts.refusals == expected


async def test_members_form_a_session_and_get_a_version_and_prompts(tmp_path: Path) -> None:
    async with Group(tmp_path) as group, group.follow() as seen:
        await group.push(1, "a", "b")
        a, b = await group.join("a"), await group.join("b")
        assert (await group.coordinator.ready()).number == 0
        await group.publish(0)
        await a.say(PromptCredit(2))
        await b.say(PromptCredit(1))
        leases = [await asyncio.wait_for(a.leases.get(), 5), await a.leases.get()]
        last = await asyncio.wait_for(b.leases.get(), 5)
        assert {lease.prompt for lease in (*leases, last)} == {0, 1, 2}
        assert await group.complete(a, leases[0]) == 200
        assert await group.complete(a, leases[0]) == 409, "counted before"
        assert await group.complete(a, last) == 409, "another rollout's lease"
        assert await group.complete(a, leases[1], token="guess") == 401
        assert await group.complete(a, leases[1], token=group.token("b")) == 403, "in its name"
        assert await group.complete(a, leases[1], token=group.token("c")) == 403, (
            "an unauthenticated client"
        )
        assert await group.complete(a, leases[1], job_uid="other") == 409
        expected = ["duplicate_completion"] * 2 + ["malformed_token", "impersonated", "not_allowed"]
        expected.append("wrong_job_completion")
        assert group.counts.refusals == expected
        assert [member.running for member in group.coordinator.report().members] == [1, 1]
        async with asyncio.timeout(5):
            while True:
                state = await seen.get()
                if [m.state for m in state.members] == [MemberState.IN_SYNC] * 2:
                    break
        assert state.session is not None
        assert state.session.members == 3


async def test_a_member_without_a_current_version_gets_no_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Group(tmp_path) as group:
        await group.push(1, "a", "b")
        a, b = await group.join("a"), await group.join("b")
        await group.coordinator.ready()
        await group.publish(0)
        machine = group.coordinator.groups["default"].machine
        monkeypatch.setattr(machine, "serving", lambda member: member == a.member)
        await b.say(PromptCredit(4))
        await a.say(PromptCredit(1))
        await asyncio.wait_for(a.leases.get(), 5)
        await asyncio.sleep(0.05)
        assert b.leases.empty()


async def test_a_batch_wakes_the_trainer_when_it_is_full(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        await group.push(1, "a")
        worker = await group.join("a")
        await group.coordinator.ready()
        await group.publish(0)
        waiting = asyncio.create_task(group.prompts.next_batch(0))
        await worker.say(PromptCredit(4))
        for _ in range(4):
            assert not waiting.done()
            lease = await asyncio.wait_for(worker.leases.get(), 5)
            assert await group.complete(worker, lease) == 200
        assert len(await asyncio.wait_for(waiting, 5)) == 4


async def test_a_broken_stream_costs_an_attempt_and_its_prompts_go_to_another(
    tmp_path: Path,
) -> None:
    async with Group(tmp_path) as group:
        await group.push(1, "a", "b")
        a, b = await group.join("a"), await group.join("b")
        await group.coordinator.ready()
        await group.publish(0)
        await a.say(PromptCredit(1))
        lease = await asyncio.wait_for(a.leases.get(), 5)
        before = group.counts.sessions[-1].session
        break_stream(a)
        await eventually(lambda: group.counts.sessions[-1].cause is SessionCause.MEMBER_LOST)
        await b.say(PromptCredit(1))
        again = await asyncio.wait_for(b.leases.get(), 5)
        assert (again.prompt, again.lease_id != lease.lease_id) == (lease.prompt, True)
        after = group.counts.sessions[-1].session
        assert (after.epoch, after.attempt) == (before.epoch, before.attempt + 1)
        ((cause, seconds),) = group.counts.suspicions
        assert cause is SuspicionCause.CONNECTION_LOST
        assert 0 <= seconds < 5


async def test_the_operator_receives_the_last_sessions_with_their_times(
    tmp_path: Path,
) -> None:
    began = time.time()
    async with Group(tmp_path) as group:
        await group.push(1, "a", "b")
        a = await group.join("a")
        await group.join("b")
        await eventually(lambda: len(group.counts.sessions) == 1)
        break_stream(a)
        await eventually(lambda: len(group.counts.sessions) == 2)
        (reported,) = group.coordinator.report().groups
        assert [s.cause for s in reported.sessions] == [
            SessionCause.NEW_ROSTER,
            SessionCause.MEMBER_LOST,
        ]
        assert reported.session == reported.sessions[-1]
        assert reported.session.detail.startswith("a: ConnectionLost: ")
        assert began <= reported.sessions[0].time <= reported.sessions[1].time <= time.time()


async def test_too_few_rollouts_pause_admission_and_say_so(tmp_path: Path) -> None:
    async with Group(tmp_path, config=with_bounds(min_rollouts=2, settle=0.05)) as group:
        await group.push(1, "a", "b")
        a = await group.join("a")
        await group.coordinator.ready()
        await group.publish(0)
        await a.say(PromptCredit(1))
        await eventually(lambda: "minRollouts is 2" in group.coordinator.report().progress.paused)
        assert a.leases.empty()
        await group.join("b")
        await asyncio.wait_for(a.leases.get(), 5)


async def test_a_restarted_coordinator_knows_its_roster_and_speaks_with_a_higher_boot(
    tmp_path: Path,
) -> None:
    async with Group(tmp_path, config=with_bounds(settle=0.05)) as group:
        await group.push(4, "a")
        await group.coordinator.ready()
        assert group.coordinator.lineage == Lineage(4, 1)
    async with Group(tmp_path, config=with_bounds(settle=0.05)) as group:
        await group.coordinator.ready()
        assert group.coordinator.lineage == Lineage(4, 2)


def break_stream(worker: Worker) -> None:
    connection = worker.socket._response.connection
    assert connection is not None
    assert connection.transport is not None
    connection.transport.abort()


@pytest.mark.parametrize("first", ["not json", '{"type": "PromptCredit", "prompts": 1}'])
async def test_a_stream_begins_with_a_hello(tmp_path: Path, first: str) -> None:
    async with Group(tmp_path) as group:
        outsider = await group.http.ws_connect(
            group.url("/v1/members/stream"), headers=bearer(group.token("a"))
        )
        await outsider.send_str(first)
        await outsider.receive(timeout=5)
        assert outsider.closed
        assert group.counts.refusals == ["malformed"]


async def test_a_rollout_that_asks_before_the_first_roster_is_served_after_it(
    tmp_path: Path,
) -> None:
    async with Group(tmp_path) as group:
        early = await group.join("a")
        await early.say(PromptCredit(1))
        await eventually(lambda: group.coordinator.groups["default"].machine.members.by_pod)
        assert early.leases.empty()
        await group.push(1, "a")
        await group.coordinator.ready()
        await group.publish(0)
        assert (await asyncio.wait_for(early.leases.get(), 5)).prompt == 0


async def test_weights_are_given_for_the_coordinators_tickets_alone(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        version = Version(Lineage(1, 1), 0)
        url = f"{group.url(pod_contract.WEIGHTS_ROUTE, pod_contract.PARTS_PORT)}?version={version}"
        for headers in ({}, bearer(group.token("a"))):
            async with group.http.get(url, headers=headers) as answer:
                assert answer.status == 401
        assert group.counts.refusals == ["no_ticket"] * 2
        donor = f"{group.address}:{pod_contract.PARTS_PORT}"
        (ticket,) = group.coordinator.tickets.tickets(version, [donor])
        async with group.http.get(url, headers={pod_contract.TICKET_HEADER: ticket}) as answer:
            assert answer.status == 404, "there are none yet"


async def test_tokens_go_through_tls_and_weights_do_not(tmp_path: Path) -> None:
    certificate = ServerCertificate(show(tmp_path / "tls", "coordinator")).context
    endpoints = {
        pod_contract.MEMBERSHIP_PORT: True,
        pod_contract.COMPLETIONS_PORT: True,
        pod_contract.PARTS_PORT: False,
    }
    async with Group(tmp_path, certificate=certificate) as group:
        assert {port: await speaks_tls(group.address, port) for port in endpoints} == endpoints


async def speaks_tls(address: str, port: int) -> bool:
    believed = client_context(certificate_of(authority()))
    try:
        _, writer = await asyncio.open_connection(
            address, port, ssl=believed, server_hostname="coordinator", ssl_handshake_timeout=5
        )
    except (ssl.SSLError, ConnectionError):
        return False
    writer.close()
    return True


@pytest.mark.parametrize("body", [b"\xff\xfe", b"[" * 100_000, b'{"epoch": 1' + b"0" * 400 + b"}"])
async def test_a_body_that_is_no_message_is_answered_with_400(tmp_path: Path, body: bytes) -> None:
    async with Group(tmp_path) as group:
        await group.push(1, "a")
        member = bearer(group.token("a"))
        operator = bearer(group.operator_token()) | {"Content-Type": "a; charset=no"}
        completions = group.url(pod_contract.COMPLETIONS_ROUTE, pod_contract.COMPLETIONS_PORT)
        async with group.http.post(completions, data=body, headers=member) as answer:
            assert answer.status == 400
        rosters = group.url(pod_contract.ROSTER_ROUTE)
        async with group.http.put(rosters, data=body, headers=operator) as answer:
            assert answer.status == 400
        assert group.counts.refusals == ["malformed", "malformed"]


async def test_a_token_that_is_no_utf_8_is_a_wrong_one(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        reader, writer = await asyncio.open_connection(group.address, pod_contract.MEMBERSHIP_PORT)
        head = f"GET {pod_contract.MEMBER_STREAM_ROUTE} HTTP/1.1\r\nHost: a\r\n".encode()
        writer.write(head + b"Authorization: Bearer \xff\xfe\r\n\r\n")
        assert b" 401 " in await reader.readline()
        writer.close()
        assert group.counts.refusals == ["malformed_token"]


async def test_each_member_has_a_key_of_its_own_by_which_others_get_tickets(tmp_path: Path) -> None:
    version = Version(Lineage(1, 1), 0)
    async with Group(tmp_path) as group:
        await group.push(1, "a", "b")
        a, b = await group.join("a"), await group.join("b")
        await eventually(lambda: a.keys and b.keys)
        assert a.keys[0].key != b.keys[0].key
        issuer = group.coordinator.tickets
        (ticket,) = issuer.tickets(version, [f"{ADDRESS}:{pod_contract.AGENT_PORT}"])
        assert ticket == sign_ticket(a.keys[0].key, str(version)), "the first at this address"
        break_stream(a)
        await eventually(lambda: issuer.tickets(version, [f"{ADDRESS}:7072"]) == ("",))


async def test_a_pod_that_left_the_roster_delivers_what_it_was_leased_and_nothing_more(
    tmp_path: Path,
) -> None:
    async with Group(tmp_path) as group:
        await group.push(1, "a", "b")
        a, _ = await group.join("a"), await group.join("b")
        await group.coordinator.ready()
        await group.publish(0)
        await a.say(PromptCredit(1))
        lease = await asyncio.wait_for(a.leases.get(), 5)
        assert (await group.push(2, "b"))[0] == 200
        assert await group.complete(a, lease) == 200
        assert await group.complete(a, lease) == 403
