"""Valid messages and requests with random changes, at every listener, by seeds that are kept."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING

import aiohttp

from hack.attacks.attack import attack, expect
from hack.attacks.by_connection import answers
from hack.attacks.by_name_server import register
from hack.attacks.clients import request, send_raw
from hack.attacks.random_changes import Fuzz
from hack.attacks.rendezvous_client import TAKE_A_SEAT, frame
from rollcall_protocol import pod_contract
from rollcall_protocol.wire.ids import Lineage, MemberId, SessionId, Version
from rollcall_protocol.wire.messages import (
    Ack,
    AckPhase,
    CaughtUp,
    Completion,
    Draining,
    GenerationProgress,
    PromptCredit,
    PromptLeaseReturned,
    ReconnectRequest,
    Sample,
    SessionRefused,
    SnapshotPartReady,
    dumps,
)
from rollcall_protocol.wire.partial_responses import PartialReport, Response
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.train.reference_pods.exchange import encode_request
from tests.process.pods import ISSUER
from tests.unit.rollcall_runtime.train.reference_pods.pods import rows

if TYPE_CHECKING:
    from hack.attacks.target import AttackedJob

# Beside the run's own seed: those that found something once.
KEPT_SEEDS = (1, 7, 20261123)
ROUNDS = 60  # for each seed


def fuzzes(job: AttackedJob) -> list[Fuzz]:
    """One for each kept seed, and one for the run's own."""
    return [Fuzz(random.Random(seed)) for seed in dict.fromkeys((job.seed, *KEPT_SEEDS))]


def member_messages() -> list[str]:
    """A valid message of every kind that a member sends after its Hello."""
    version, session = Version(Lineage(1, 1), 0), SessionId(1, 1, 1)
    response = Response((1, 2), (-1.0, -1.0), (0, 0))
    report = PartialReport("1.1.1", version, (0, 0), (response, response))
    return [
        dumps(message)
        for message in (
            Ack(session, AckPhase.STAGE, version, "an error"),
            CaughtUp(version),
            SessionRefused(session, session),
            PromptCredit(1),
            Draining("reason", 1.0),
            GenerationProgress((report,)),
            PromptLeaseReturned("1.1.1"),
            SnapshotPartReady(0, WeightManifest((), 300, 64 << 20, ("0" * 32,))),
        )
    ]


@attack("registered", "malformed", seconds=120, quick=True)
async def fuzzed_messages_on_streams(job: AttackedJob) -> None:
    """Messages of every kind with a random change, on streams of newcomers: refused, counted."""
    kinds = member_messages()
    for fuzz in fuzzes(job):
        for _ in range(ROUNDS):
            newcomer = job.registered()
            async with job.member_stream(newcomer) as socket:
                with contextlib.suppress(aiohttp.ClientError, OSError):
                    for text in fuzz.random.sample(kinds, 3):
                        await socket.send_str(fuzz.of_message(text))
    await answers(job)


@attack("registered", "malformed", "bad_hello", "impersonated", seconds=120)
async def fuzzed_hellos(job: AttackedJob) -> None:
    """First messages with a random change: refused, or harmless, and counted."""
    for fuzz in fuzzes(job):
        for _ in range(ROUNDS):
            newcomer = job.registered()
            async with job.stream_of(newcomer) as socket:
                with contextlib.suppress(aiohttp.ClientError, OSError):
                    await socket.send_str(fuzz.of_message(dumps(newcomer.hello(job.uid))))
    await answers(job)


@attack("member", "malformed", seconds=120)
async def fuzzed_completions(job: AttackedJob) -> None:
    """Completions with a random change, of values and of bytes: a status from 400 to 499."""
    async with job.members() as (member,):
        sample = Sample((3, 2), (-1.0, -1.0), (0, 0), 1.0)
        name, version = MemberId(member.uid, "boot"), Version(Lineage(1, 1), 0)
        text = dumps(Completion(job.uid, name, "1.1.1", version, (sample, sample)))
        for fuzz in fuzzes(job):
            for _ in range(ROUNDS):
                body = fuzz.of_message(text).encode(errors="surrogatepass")
                await post_changed(job, member.token, body)
                await post_changed(job, member.token, fuzz.of_bytes(text.encode()))


async def post_changed(job: AttackedJob, token: str, body: bytes) -> None:
    """NotRefusedError unless this completion is refused as such."""
    route = pod_contract.COMPLETIONS_ROUTE
    status = await request(job.completions, "POST", route, token=token, body=body)
    expect(400 <= status < 500, f"{body[:200]!r} was answered {status}")


@attack("unauthenticated", "malformed", seconds=60)
async def fuzzed_reconnect_requests(job: AttackedJob) -> None:
    """Reconnect requests with a random change: 200, 400 or 413."""
    text = dumps(ReconnectRequest("203.0.113.7", "another"))
    for fuzz in fuzzes(job):
        for _ in range(ROUNDS):
            body = fuzz.of_message(text).encode(errors="surrogatepass")
            status = await register(job.agent, body)
            expect(status in {0, 200, 400, 413}, f"{body[:200]!r} was answered {status}")


@attack("unauthenticated", "malformed_request", seconds=120)
async def fuzzed_requests(job: AttackedJob) -> None:
    """HTTP requests with random changes of their bytes, at each endpoint: no 2xx and no 5xx."""
    text = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {job.membership.address}\r\n"
        "Authorization: Bearer guess\r\nContent-Type: application/json\r\n"
        "Content-Length: 2\r\nConnection: close\r\n\r\n{}"
    ).encode()
    for fuzz in fuzzes(job):
        for endpoint in job.http_endpoints:
            sent = [fuzz.of_bytes(text) for _ in range(ROUNDS // 3)]
            for answer in await asyncio.gather(*(send_raw(endpoint, s, seconds=1.0) for s in sent)):
                first = answer.partition(b"\r\n")[0]
                expect(b" 2" not in first[:12] and b" 5" not in first[:12], f"{first!r}")


@attack("unauthenticated", "malformed", seconds=120)
async def fuzzed_hellos_at_the_rendezvous(job: AttackedJob) -> None:
    """Hellos of the ranks' rendezvous with random changes: closed without an answer."""
    hello = frame({"secret": job.registered().token, "session": "trainer"}) + TAKE_A_SEAT
    for fuzz in fuzzes(job):
        sent = [fuzz.of_bytes(hello) for _ in range(ROUNDS)]
        tasks = (send_raw(job.ranks_rendezvous, data, seconds=1.0) for data in sent)
        for answer in await asyncio.gather(*tasks):
            expect(not answer, f"the rendezvous answered {answer[:100]!r}")


@attack("trainer rank", "malformed", seconds=120, quick=True)
async def fuzzed_rows_for_the_reference(job: AttackedJob) -> None:
    """A rank that was taken over sends rows with random changes: 400, 413 or 422, or an answer."""
    pod = job.job.trainers[1]
    audience = pod_contract.reference_audience(job.uid)
    token = ISSUER.pod_token(job_uid=job.uid, pod=pod.name, pod_uid=pod.uid, audience=audience)
    body = encode_request(rows(5, 3))
    for fuzz in fuzzes(job):
        for _ in range(ROUNDS):
            changed = fuzz.of_bytes(body)
            route = pod_contract.LOGPROBS_ROUTE
            status = await request(job.reference, "POST", route, token=token, body=changed)
            expect(status in {200, 400, 413, 422, 503}, f"{changed[:200]!r} was answered {status}")
