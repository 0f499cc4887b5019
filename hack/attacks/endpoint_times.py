"""How long honest callers wait at the endpoints, with and without connections that others hold."""

from __future__ import annotations

import contextlib
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hack.attacks.clients import held_connections, request
from rollcall_protocol.wire.roster import EpochCause

if TYPE_CHECKING:
    from hack.attacks.target import AttackedJob

TIMES = 20
ADDRESSES = 20
HELD = 600  # connections at each endpoint: more than it lets wait


@dataclass(frozen=True, slots=True)
class EndpointTimes:
    """Medians in seconds.

    Attributes:
        probe: until /healthz of a trainer answers.
        stream: from a newcomer's connection to the first message for it.
        roster: until the coordinator has taken a roster.
    """

    probe: float
    stream: float
    roster: float


async def measure_endpoints(job: AttackedJob) -> EndpointTimes:
    """Call each endpoint TIMES times, one call after the other."""
    probes, streams, rosters = [], [], []
    for _ in range(TIMES):
        began = time.perf_counter()
        await request(job.probes(job.job.trainer), "GET", "/healthz")
        probes.append(time.perf_counter() - began)
        began = time.perf_counter()
        async with job.member_stream(job.registered()) as socket:
            await socket.receive()
        streams.append(time.perf_counter() - began)
        began = time.perf_counter()
        await job.push_roster(EpochCause.MEMBERS_JOINED)
        rosters.append(time.perf_counter() - began)
    return EndpointTimes(*(statistics.median(each) for each in (probes, streams, rosters)))


async def measure_endpoints_held_by_others(job: AttackedJob) -> EndpointTimes:
    """The same while clients at 20 addresses hold all the connections that they can."""
    network = job.membership.address.rpartition(".")[0]
    sources = tuple(f"{network}.{200 + number}" for number in range(ADDRESSES))
    endpoints = [job.membership, job.completions, job.probes(job.job.trainer)]
    async with contextlib.AsyncExitStack() as stack:
        for endpoint in endpoints:
            await stack.enter_async_context(held_connections(endpoint, HELD, sources=sources))
        return await measure_endpoints(job)
