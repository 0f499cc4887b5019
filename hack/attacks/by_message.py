"""Messages on a member's stream that cannot be true, in any number and form."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from dataclasses import replace
from typing import TYPE_CHECKING

import aiohttp

from hack.attacks.attack import attack, expect
from hack.attacks.clients import connection, until_closed
from rollcall_protocol import pod_contract
from rollcall_protocol.wire.ids import Lineage, SessionId, Version
from rollcall_protocol.wire.messages import (
    Ack,
    AckPhase,
    CaughtUp,
    Draining,
    GenerationProgress,
    MemberMessage,
    PromptCredit,
    PromptLeaseReturned,
    SessionRefused,
    dumps,
)
from rollcall_protocol.wire.partial_responses import PartialReport, Response

if TYPE_CHECKING:
    from hack.attacks.target import AttackedJob

CLOSE_SECONDS = 15.0
FUTURE = 10**9


async def is_closed_after(job: AttackedJob, *texts: str | bytes, times: int = 1) -> None:
    """Send messages as a new member of the roster; NotRefusedError if its stream stays open."""
    async with job.members() as (member,), job.member_stream(member) as socket:
        with contextlib.suppress(aiohttp.ClientError, OSError):
            for text in texts * times:
                if isinstance(text, bytes):
                    await socket.send_bytes(text)
                else:
                    await socket.send_str(text)
        expect(await until_closed(socket, seconds=CLOSE_SECONDS), "the stream stays open")


async def is_excluded_after(job: AttackedJob, *messages: MemberMessage) -> None:
    """Send lies as a new member; NotRefusedError unless it may not come back after them."""
    async with job.members() as (member,):
        async with job.member_stream(member) as socket:
            with contextlib.suppress(aiohttp.ClientError, OSError):
                for message in messages:
                    await socket.send_str(dumps(message))
            expect(await until_closed(socket, seconds=CLOSE_SECONDS), "the liar's stream is open")
        async with job.member_stream(member, boot="again") as socket:
            expect(await until_closed(socket, seconds=CLOSE_SECONDS), "the liar came back")


@attack("member", "malformed", quick=True)
async def messages_that_are_none(job: AttackedJob) -> None:
    """No JSON, deep JSON, integers of 400 digits, unknown types and fields: the stream ends."""
    for text in (
        "",
        "{",
        "[" * 10**5,
        '{"a":' * 10**4,
        '{"type":"Ack"}',
        '{"type":"Nothing"}',
        json.dumps({"type": "PromptCredit", "prompts": 1, "more": 1}),
        '{"type":"PromptCredit","prompts":' + "9" * 400 + "}",
        '{"type":"PromptCredit","prompts":1e400}',
        '{"type":"PromptCredit","prompts":NaN}',
        '{"type":"PromptLeaseReturned","lease_id":"' + "a" * (1 << 21) + '"}',
    ):
        await is_closed_after(job, text)


@attack("member", "bad_hello", "bad_version", "malformed", "impersonated", quick=True)
async def hellos_that_cannot_be_true(job: AttackedJob) -> None:
    """Another job, group or pool, empty and endless names, versions of the future: refused."""
    async with job.members() as (member,):
        for changes in (
            {"job_uid": "other"},
            {"group": "other"},
            {"pool": "other"},
            {"address": ""},
            {"address": "a" * 300},
            {"descriptor": "a" * 2**19},
            {"descriptor": "a" * 2**21},
            {"weights_port": 2**16},
            {"weights_port": -1},
            {"shard": "s" * 2**19},
            {"held": Version(Lineage(1, 1), FUTURE)},
            {"held": Version(Lineage(1, 1), -1)},
            {"pod": "x" * 2**20},
        ):
            async with job.member_stream(member, **changes) as socket:
                expect(await until_closed(socket, seconds=CLOSE_SECONDS), f"{list(changes)}: open")


@attack("member", "bad_version")
async def versions_of_the_future(job: AttackedJob) -> None:
    """A member says that it serves a version that does not exist: excluded, and stays out."""
    future = Version(Lineage(1, 1), FUTURE)
    session = SessionId(1, 1, 1)
    await is_excluded_after(
        job,
        CaughtUp(future),
        Ack(session, AckPhase.COMMIT, future),
        CaughtUp(replace(future, number=-1)),
    )


@attack("member", "bad_session")
async def session_of_another_coordinator(job: AttackedJob) -> None:
    """A member says that it follows epoch 10^6: it is excluded, and the trainer does not end."""
    later = SessionId(10**6, 1, 1)
    await is_closed_after(job, dumps(SessionRefused(SessionId(1, 1, 1), later)))


@attack("member", "malformed", "bad_part", quick=True)
async def buckets_without_end(job: AttackedJob) -> None:
    """118 bytes that claim 2^40 buckets of weights: refused before anything is allocated."""
    part = {"tensors": [], "total_bytes": 2**40, "bucket_bytes": 1, "digests": [], "parts": []}
    text = json.dumps({"type": "SnapshotPartReady", "number": 0, "part": part, "delta": None})
    await is_closed_after(job, text)
    small = {**part, "total_bytes": 300, "bucket_bytes": 7, "digests": ["0" * 32] * 43}
    text = json.dumps({"type": "SnapshotPartReady", "number": 0, "part": small, "delta": None})
    await is_closed_after(job, text, text, text)


@attack("member", "bad_prompts")
async def credits_without_end(job: AttackedJob) -> None:
    """A member asks for 10^18 prompts, and for less than none: excluded."""
    await is_excluded_after(job, PromptCredit(10**18), PromptCredit(-5), PromptCredit(5000))


@attack("member", "bad_prompts")
async def progress_of_too_many_leases(job: AttackedJob) -> None:
    """Reports of 5,000 leases in a message: excluded."""
    reports = tuple(PartialReport(f"1.1.{number}") for number in range(5000))
    await is_excluded_after(job, *[GenerationProgress(reports)] * 3)


@attack("member", "bad_prompts", quick=True)
async def lease_names_without_end(job: AttackedJob) -> None:
    """Reports of leases whose names have 1 MB, which the coordinator would send back: excluded."""
    message = GenerationProgress(tuple(PartialReport("a" * 10**6) for _ in range(10)))
    returned = PromptLeaseReturned("a" * 10**6)
    await is_excluded_after(job, message, returned, message)


@attack("member", "unread_messages", "late_report", seconds=60)
async def answers_that_are_not_read(job: AttackedJob) -> None:
    """A member provokes answers and reads none: its stream ends before they fill the memory."""
    reports = tuple(PartialReport(f"{'x' * 90}.{number}") for number in range(4000))
    text = dumps(GenerationProgress(reports)).encode()
    async with job.members() as (member,):
        await push_without_reading(
            job, member.token, dumps(member.hello(job.uid)), text, times=1500
        )


@attack("registered", "late_report")
async def progress_of_leases_of_others(job: AttackedJob) -> None:
    """Reports of leases that the attacker does not hold, of tokens beyond any: without effect."""
    response = Response((10**9,), (-1.0,), (FUTURE,))
    report = PartialReport("1.1.1", Version(Lineage(1, 1), 0), (0,) * 8, (response,) * 8)
    newcomer = job.registered()
    async with job.member_stream(newcomer) as socket:
        for _ in range(500):
            await socket.send_str(dumps(GenerationProgress((report,))))
        await socket.send_str(dumps(PromptLeaseReturned("1.1.1")))


@attack("member", "too_many_messages", quick=True)
async def flood_of_drains(job: AttackedJob) -> None:
    """40,000 messages that say it drains, with long reasons: its pod is excluded, counted."""
    await is_excluded_after(job, *(Draining("r" * 2000, 1e308) for _ in range(40_000)))


@attack("registered")
async def flood_of_streams(job: AttackedJob) -> None:
    """500 streams of one pod, each of another incarnation: each ends the one before."""
    newcomer = job.registered()
    async with contextlib.AsyncExitStack() as stack:
        for number in range(500):
            boot = f"boot-{number}"
            await stack.enter_async_context(job.member_stream(newcomer, boot=boot))


@attack("registered", "malformed")
async def streams_without_a_hello(job: AttackedJob) -> None:
    """300 streams that say nothing: closed within seconds, counted."""
    newcomer = job.registered()
    async with contextlib.AsyncExitStack() as stack:
        sockets = [await stack.enter_async_context(job.stream_of(newcomer)) for _ in range(300)]
        closed = await asyncio.gather(*(until_closed(s, seconds=CLOSE_SECONDS) for s in sockets))
        expect(all(closed), "a stream without a Hello stays open")


@attack("member")
async def frames_without_end(job: AttackedJob) -> None:
    """Frames of 2^62 bytes, fragments beyond 16 MiB, masks that are missing: the stream ends."""
    async with job.members() as (member,):
        claims = b"\x81\xff" + struct.pack(">Q", 2**62) + b"mask"
        fragment = b"\x01\xff" + struct.pack(">Q", 1 << 20) + b"\0\0\0\0" + b"a" * (1 << 20)
        more = b"\x00" + fragment[1:]
        for first, rest in ((claims, b"x" * 65536), (fragment, more), (b"\x81\x05Hello", b"\xff")):
            await push_frames(job, member.token, first, rest, times=40)


@attack("member")
async def deflated_messages(job: AttackedJob) -> None:
    """A compressed message of 1 GiB: the stream ends before it is unpacked."""
    async with job.members() as (member,), job.stream_of(member, compress=15) as socket:
        with contextlib.suppress(aiohttp.ClientError, OSError):
            await socket.send_str("a" * (1 << 28))
        expect(await until_closed(socket, seconds=CLOSE_SECONDS), "the stream stays open")


@attack("member")
async def flood_of_pings(job: AttackedJob) -> None:
    """A hundred thousand pings whose answers are not read: training goes on."""
    ping = b"\x89\x80\0\0\0\0" * 1000
    async with job.members() as (member,):
        await push_frames(job, member.token, b"", ping, times=100)


async def push_without_reading(
    job: AttackedJob, token: str, hello: str, text: bytes, *, times: int
) -> None:
    """Send a Hello and then a message many times on a stream from which nothing is read."""
    await push_frames(job, token, text_frame(hello.encode()), text_frame(text), times=times)


async def push_frames(
    job: AttackedJob, token: str, first: bytes, rest: bytes, *, times: int
) -> None:
    """Open a stream by hand, send bytes on it, and read nothing."""
    route = pod_contract.MEMBER_STREAM_ROUTE
    header = (
        f"GET {route} HTTP/1.1\r\nHost: {job.membership.address}\r\nUpgrade: websocket\r\n"
        f"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nAuthorization: Bearer {token}\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    async with connection(job.membership) as (_, writer):
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                writer.write(header.encode() + first)
                for _ in range(times):
                    writer.write(rest)
                    await writer.drain()


def text_frame(data: bytes) -> bytes:
    """One whole WebSocket message of a client, under a mask of zeros."""
    return b"\x81\xff" + struct.pack(">Q", len(data)) + b"\0\0\0\0" + data
