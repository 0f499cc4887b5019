"""Look-ups of names: requests that cause them, while DNS does not answer."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from hack.attacks import silent_dns
from hack.attacks.attack import attack, expect
from hack.attacks.clients import Endpoint, request
from rollcall_protocol import pod_contract
from rollcall_protocol.wire.messages import ReconnectRequest, dumps
from rollcall_protocol.wire.roster import EpochCause
from tests.certificates import show
from tests.process.harness import in_sync

if TYPE_CHECKING:
    from hack.attacks.target import AttackedJob
    from rollcall_protocol.wire.job_snapshot import JobSnapshot

FLOOD_SECONDS = 12.0
JOIN_SECONDS = 60.0


@attack("unauthenticated", quick=True)
async def flood_of_reconnect_requests(job: AttackedJob) -> None:
    """2,000 requests to connect again, to another coordinator: the rollout keeps its stream."""
    before = (await job.metrics(job.job.rollouts[0]))["stream_reconnects_total"]
    body = dumps(ReconnectRequest("203.0.113.7", "another")).encode()
    for _ in range(40):
        await asyncio.gather(*(register(job.agent, body) for _ in range(50)))
    after = (await job.metrics(job.job.rollouts[0]))["stream_reconnects_total"]
    expect(after == before, f"the rollout opened {after - before} streams")


@attack("unauthenticated", "malformed", "long_body")
async def reconnect_requests_that_are_none(job: AttackedJob) -> None:
    """Requests to connect again with no JSON, or of 64 KiB: 400 or 413, counted."""
    for body in (b"", b"{", b"\xff", b"[" * 4000, json.dumps({"type": "Hello"}).encode()):
        expect(await register(job.agent, body) == 400, f"{body[:9]!r} was taken")
    expect(await register(job.agent, b" " * 65536) in {0, 413}, "64 KiB were taken")


@attack("unauthenticated", seconds=150)
async def reconnect_requests_while_dns_is_silent(job: AttackedJob) -> None:
    """Requests for look-ups to a rollout whose DNS does not answer: it stays in its session."""
    marker = job.job.folder / "dns-is-silent"
    variables = {
        pod_contract.COORDINATOR: silent_dns.NAME,
        silent_dns.ADDRESS: job.membership.address,
        silent_dns.MARKER: str(marker),
    }
    trainer = job.job.trainer  # which shows its new certificate after a second
    mounted = job.job.folder / "mounted" / trainer.uid / "tls"
    show(mounted, trainer.address, silent_dns.NAME)
    pod = await job.job.launch(imports=silent_dns.__name__, **variables)
    await job.push_roster(EpochCause.MEMBERS_JOINED)
    try:
        await job.job.operator.until(lambda s: in_sync(s, pod), seconds=JOIN_SECONDS)
        marker.touch()
        body = dumps(ReconnectRequest("203.0.113.7", "another")).encode()
        endpoint = Endpoint(pod.address, pod_contract.AGENT_PORT)
        end = asyncio.get_running_loop().time() + FLOOD_SECONDS
        while asyncio.get_running_loop().time() < end:
            expect(await register(endpoint, body) in {200, 503}, "the rollout does not answer")
            await asyncio.sleep(0.1)
        step = job.job.operator.last.progress.step

        def goes_on(snapshot: JobSnapshot) -> bool:
            return snapshot.progress.step >= step + 5 and in_sync(snapshot, pod)

        await job.job.operator.until(goes_on, seconds=JOIN_SECONDS)
    except AssertionError as error:
        expect(False, f"a rollout without DNS: {error}"[:300])
    finally:
        job.job.rollouts.remove(pod)
        await job.push_roster(EpochCause.MEMBER_LOST)
        await pod.close()


async def register(endpoint: Endpoint, body: bytes) -> int:
    """The status of the answer to a reconnect request."""
    return await request(endpoint, "POST", pod_contract.REGISTER_ROUTE, body=body)
