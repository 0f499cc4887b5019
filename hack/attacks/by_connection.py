"""Slow and greedy clients at all listeners."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from typing import TYPE_CHECKING

from hack.attacks.attack import attack, expect
from hack.attacks.clients import Endpoint, connection, drip, held_connections, request, send_raw
from hack.attacks.worker_vitals import listening_ports
from rollcall_protocol import pod_contract

if TYPE_CHECKING:
    from hack.attacks.target import AttackedJob

IDLE = 1200  # connections: beyond what one address may have open
HELD_SECONDS = 3.0
HEALTH_SECONDS = 10.0


async def answers(job: AttackedJob) -> None:
    """NotRefusedError unless every worker still answers probes and every endpoint its callers."""
    for pod in job.workers:
        status = await request(job.probes(pod), "GET", "/healthz", seconds=HEALTH_SECONDS)
        expect(status == 200, f"/healthz of {pod.name} answered {status}")
    status = await request(job.membership, "GET", pod_contract.MEMBER_STREAM_ROUTE)
    expect(status == 401, f"the coordinator's endpoint answered {status}")


def opening(endpoint: Endpoint, method: str = "GET", route: str = "/healthz") -> bytes:
    """The beginning of a request, without the end of its header."""
    return f"{method} {route} HTTP/1.1\r\nHost: {endpoint.address}\r\n".encode()


@attack("unauthenticated", "slow_header", "too_many_connections", quick=True, seconds=60)
async def idle_connections(job: AttackedJob) -> None:
    """1,200 connections that say nothing, at each endpoint: the oldest are closed."""
    for endpoint in job.http_endpoints:
        async with held_connections(endpoint.without_tls, IDLE):
            await answers(job)


@attack("unauthenticated", "tls_handshake", quick=True)
async def no_handshakes(job: AttackedJob) -> None:
    """Requests without TLS, noise and half a handshake, 50 times at each endpoint with TLS."""
    for endpoint in (job.membership, job.completions, job.reference):
        request_line = opening(endpoint, "PUT", pod_contract.ROSTER_ROUTE) + b"\r\n"
        hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
        for first in (request_line, job.random.randbytes(400), hello):
            for _ in range(50):
                async with connection(endpoint.without_tls) as (_, writer):
                    writer.write(first)
    await answers(job)


@attack("unauthenticated", "slow_header", seconds=60)
async def slow_headers(job: AttackedJob) -> None:
    """200 clients at each endpoint that send a byte of a header each second: closed within 5 s."""
    for endpoint in job.http_endpoints:
        async with held_connections(endpoint, 200, opening(endpoint)) as writers:
            for _ in range(int(HELD_SECONDS)):
                drip(writers, b"X")
                await asyncio.sleep(1.0)
            await answers(job)


@attack("unauthenticated", "long_header", quick=True)
async def floods_of_headers(job: AttackedJob) -> None:
    """Headers of 1 MiB, in one field and in thousands, at each endpoint: closed, counted."""
    for endpoint in job.http_endpoints:
        for header in (b"X: " + b"a" * (1 << 20), b"X: a\r\n" * (1 << 17)):
            answer = await send_raw(endpoint, opening(endpoint) + header)
            expect(
                not answer.startswith(b"HTTP/1.1 2"), f"a long header was taken: {answer[:80]!r}"
            )
    await answers(job)


@attack("unauthenticated")
async def contradictory_lengths(job: AttackedJob) -> None:
    """Two lengths, a negative one, a length beside chunks, 10^18 bytes: each endpoint refuses."""
    fields = (
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: -1\r\n",
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 1000000000000000000\r\n",
        "Content-Length: " + "9" * 300 + "\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: xchunked\r\n",
    )
    for endpoint in job.http_endpoints:
        for field in fields:
            text = opening(endpoint, "POST", "/v1/completions") + f"{field}\r\n".encode()
            answer = await send_raw(endpoint, text + b"0\r\n\r\nGET", seconds=2.0)
            first = answer[:12]
            expect(b" 2" not in first and b" 5" not in first, f"{field[:60]!r}: {first!r}")
    await answers(job)


@attack("unauthenticated", "no_token")
async def chunks_without_end(job: AttackedJob) -> None:
    """A body of chunks that never ends, without a token: refused at its header, not read on."""
    for endpoint, route in ((job.completions, "/v1/completions"), (job.reference, "/v1/logprobs")):
        header = opening(endpoint, "POST", route) + b"Transfer-Encoding: chunked\r\n\r\n"
        chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        sent = 0
        async with connection(endpoint) as (_, writer):
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(10):
                    writer.write(header)
                    # By TLS a write to a closed connection raises nothing.
                    while sent < 1 << 28 and not writer.transport.is_closing():
                        writer.write(chunk)
                        await writer.drain()
                        await asyncio.sleep(0)  # for the news that it is closed
                        sent += len(chunk)
        expect(sent < 1 << 27, f"{sent} bytes of a body without a token were taken")


@attack("member", "encoded_body", quick=True)
async def deflate_bomb(job: AttackedJob) -> None:
    """A completion of 1 GiB of zeros, 1 MiB when compressed: 415, counted, at each endpoint that
    takes a body, and never decompressed.
    """
    packed = zlib.compress(bytes(1 << 28), 9)
    headers = {"Content-Encoding": "deflate", "Content-Type": "application/json"}
    async with job.members() as (member,):
        for endpoint, method, route in (
            (job.completions, "POST", pod_contract.COMPLETIONS_ROUTE),
            (job.membership, "PUT", pod_contract.ROSTER_ROUTE),
            (job.agent, "POST", pod_contract.GENERATE_ROUTE),
            (job.agent, "POST", pod_contract.REGISTER_ROUTE),
            (job.reference, "POST", pod_contract.LOGPROBS_ROUTE),
        ):
            status = await request(
                endpoint, method, route, token=member.token, headers=headers, body=packed
            )
            expect(status in {415, 0}, f"{route} answered a deflate bomb with {status}")


@attack("unauthenticated", seconds=60)
async def requests_without_their_body(job: AttackedJob) -> None:
    """900 reconnect requests whose body never comes: the rollout stays within its memory."""
    endpoint = job.agent
    header = (
        opening(endpoint, "POST", pod_contract.REGISTER_ROUTE) + b"Content-Length: 4000\r\n\r\n"
    )
    async with held_connections(endpoint, 900, header):
        await asyncio.sleep(HELD_SECONDS)
        await answers(job)


@attack("unauthenticated", seconds=60)
async def answered_and_kept_open(job: AttackedJob) -> None:
    """900 clients that are answered by the probes' endpoint and stay: probes answer others."""
    for pod in (job.job.trainer, job.job.rollouts[0]):
        endpoint = job.probes(pod)
        async with held_connections(endpoint, 900, opening(endpoint) + b"\r\n"):
            await asyncio.sleep(HELD_SECONDS)
            await answers(job)


@attack("unauthenticated", seconds=60)
async def metrics_read_slowly(job: AttackedJob) -> None:
    """300 clients that ask for metrics, many times each, and read nothing: probes answer others."""
    await _read_slowly(job, "/metrics")


@attack("unauthenticated", seconds=60)
async def responses_read_slowly(job: AttackedJob) -> None:
    """300 clients that ask for all recorded responses and read nothing: probes answer others."""
    await _read_slowly(job, "/samples?limit=256")


async def _read_slowly(job: AttackedJob, route: str) -> None:
    endpoint = job.probes(job.job.trainer)
    asked = (opening(endpoint, "GET", route) + b"\r\n") * 50
    async with held_connections(endpoint, 300, asked):
        await asyncio.sleep(HELD_SECONDS)
        await answers(job)


@attack("unauthenticated", seconds=60)
async def junk_at_every_port(job: AttackedJob) -> None:
    """Bytes that are no protocol at every port on which a worker listens: training goes on."""
    for pod in job.workers:
        for port in listening_ports(pod.address):
            endpoint, sent = (
                Endpoint(pod.address, port),
                map(job.random.randbytes, (1, 8, 64, 4096)),
            )
            tasks = (send_raw(endpoint, data, seconds=1.0) for data in sent)
            await asyncio.gather(*tasks, return_exceptions=True)
    await answers(job)


@attack("unauthenticated", "slow_header", "too_many_connections", seconds=90)
async def idle_connections_of_many_addresses(job: AttackedJob) -> None:
    """1,200 idle connections of 20 addresses to the coordinator: its callers get through."""
    network = job.membership.address.rpartition(".")[0]
    sources = tuple(f"{network}.{number}" for number in range(200, 220))
    for endpoint in (job.membership, job.completions):
        async with held_connections(endpoint, IDLE, sources=sources):
            await answers(job)
