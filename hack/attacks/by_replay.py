"""What was true once, said again: tickets, acknowledgements, messages of an earlier stream."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import aiohttp

from hack.attacks.attack import NotRefusedError, attack, expect
from hack.attacks.clients import Endpoint, request, until_closed
from hack.attacks.compare_weights import catch_up
from rollcall_protocol import pod_contract
from rollcall_protocol.wire.ids import Lineage, SessionId, Version
from rollcall_protocol.wire.messages import Ack, AckPhase, CatchUp, CaughtUp, PromptCredit, dumps

if TYPE_CHECKING:
    from hack.attacks.target import AttackedJob

STEPS = 10  # after which a version is not the newest any more
STEP_SECONDS = 60.0
CLOSE_SECONDS = 15.0


@attack("member", "no_ticket", seconds=120, quick=True)
async def tickets_used_again(job: AttackedJob) -> None:
    """A ticket at another donor, for another version, and after its version: no weights."""
    task, other = await two_donors(job)
    version, number, own = str(task.version), task.version.number, task.donors[0]
    for donor, asked in (
        (other, version),
        (own, f"{number + 1}@1.1"),
        (own, f"{number - 1}@1.1"),
    ):
        status = await weights(donor, asked, task.tickets[0])
        expect(status == 401, f"a ticket for {version} of another donor was answered {status}")
    await job.job.steps(STEPS, seconds=STEP_SECONDS)
    status = await weights(own, version, task.tickets[0])
    expect(status in {401, 404}, f"an old ticket was answered {status}")


async def two_donors(job: AttackedJob) -> tuple[CatchUp, str]:
    """What a newcomer is asked while both rollouts hold a version, and the second of them."""
    deadline = time.monotonic() + STEP_SECONDS
    async with job.members() as (newcomer,):
        while time.monotonic() < deadline:
            task = await catch_up(job, newcomer)
            others = [donor for donor in task.donors[1:] if "+" not in donor]
            if others:
                return task, others[0]
            await asyncio.sleep(0.5)  # one rollout loads a version, or has just come back
    raise NotRefusedError("no two rollouts held one version")


async def weights(donor: str, version: str, ticket: str) -> int:
    """The status of the answer to a newcomer at a donor (host:port)."""
    host, _, port = donor.rpartition(":")
    path = f"{pod_contract.WEIGHTS_ROUTE}?version={version}"
    headers = {pod_contract.TICKET_HEADER: ticket}
    return await request(Endpoint(host, int(port)), "GET", path, headers=headers)


@attack("member")
async def acknowledgements_of_former_sessions(job: AttackedJob) -> None:
    """3,000 acknowledgements of sessions and versions that are over: without effect."""
    async with job.members() as (member,), job.member_stream(member) as socket:
        with contextlib.suppress(aiohttp.ClientError, OSError):
            for number in range(1000):
                session, version = SessionId(1, 1, number % 7), Version(Lineage(1, 1), number % 5)
                for phase in (AckPhase.JOIN, AckPhase.STAGE, AckPhase.COMMIT):
                    await socket.send_str(dumps(Ack(session, phase, version, "", own_fault=True)))


@attack("member")
async def messages_of_an_earlier_stream(job: AttackedJob) -> None:
    """A pod's second stream ends its first, and what is said on that has no effect."""
    async with (
        job.members() as (member,),
        job.member_stream(member, boot="first") as first,
        job.member_stream(member, boot="second"),
    ):
        with contextlib.suppress(aiohttp.ClientError, OSError):
            for _ in range(500):
                await first.send_str(dumps(PromptCredit(1)))
                await first.send_str(dumps(CaughtUp(Version(Lineage(1, 1), 0))))
        expect(await until_closed(first, seconds=CLOSE_SECONDS), "the first stream stays open")


@attack("unauthenticated", "no_token", seconds=60)
async def flood_of_refused_requests(job: AttackedJob) -> None:
    """3,000 drains and rosters without a token: 401 each, counted; training goes on."""
    for _ in range(60):
        drains = (request(job.agent, "POST", pod_contract.DRAIN_ROUTE) for _ in range(25))
        rosters = (request(job.membership, "PUT", pod_contract.ROSTER_ROUTE) for _ in range(25))
        statuses = set(await asyncio.gather(*drains, *rosters))
        expect(statuses <= {0, 401}, f"requests without a token were answered {statuses}")
