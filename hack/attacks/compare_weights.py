"""Compares the weights that rollouts hold with those that the trainer published."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import aiohttp

from hack.attacks.attack import NotRefusedError
from rollcall_protocol import pod_contract
from rollcall_protocol.wire.messages import COORDINATOR_MESSAGES, CatchUp, loads

if TYPE_CHECKING:
    from hack.attacks.target import AttackedJob, Attacker

FETCH_SECONDS = 10.0


async def compare_served_weights(job: AttackedJob, *, seconds: float) -> None:
    """Fetch one version from every donor, as a newcomer does, until they were all there for it.

    NotRefusedError if the bytes differ, or no version was to be had from all within `seconds`.
    """
    deadline = time.monotonic() + seconds
    want = {job.membership.address, *(pod.address for pod in job.job.rollouts)}
    reason = ""
    async with job.members() as (newcomer,):
        while time.monotonic() < deadline:
            found = await _weights_by_host(job, newcomer)
            if len(set(found.values())) > 1:
                raise NotRefusedError(f"weights of {sorted(found)} differ")
            if want <= set(found):
                return
            reason = f"of {sorted(want)} only {sorted(found)} gave a version"
    raise NotRefusedError(f"weights could not be compared: {reason}")


async def _weights_by_host(job: AttackedJob, newcomer: Attacker) -> dict[str, bytes]:
    """What each donor of a newcomer gives; those that hold the version no longer are left out."""
    task = await catch_up(job, newcomer)
    found = {}
    timeout = aiohttp.ClientTimeout(total=FETCH_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        for donor, ticket in zip(task.donors, task.tickets, strict=True):
            hosts = list(zip(donor.split("+"), ticket.split("+"), strict=True))
            parts = [await _part(session, *host, version=str(task.version)) for host in hosts]
            if None not in parts:
                found[donor.partition(":")[0]] = b"".join(filter(None, parts))
    return found


async def _part(
    session: aiohttp.ClientSession, host: str, ticket: str, *, version: str
) -> bytes | None:
    """The buffer of one sender, without its manifest; None if it holds the version no longer."""
    url = f"http://{host}{pod_contract.WEIGHTS_ROUTE}?version={version}"
    try:
        async with session.get(url, headers={pod_contract.TICKET_HEADER: ticket}) as answer:
            if answer.status != 200:
                return None
            body = await answer.read()
    except (aiohttp.ClientError, TimeoutError):
        return None
    return body[8 + int.from_bytes(body[:8], "big") :]


async def catch_up(job: AttackedJob, newcomer: Attacker) -> CatchUp:
    """What the coordinator sends to a newcomer on the roster."""
    async with job.member_stream(newcomer) as socket:
        async for frame in socket:
            message = loads(frame.data, COORDINATOR_MESSAGES)
            if isinstance(message, CatchUp):
                return message
    raise NotRefusedError("a newcomer was not asked to catch up")
