"""Clients without the secret where trainer ranks meet; sync sessions use the same code.

gloo's own listeners are left out: they accept every connection, and a process that runs out of file
descriptors there is ended by the library. A NetworkPolicy is what stops such a flood.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from typing import TYPE_CHECKING

from hack.attacks.attack import attack, expect
from hack.attacks.by_connection import answers
from hack.attacks.clients import connection, drip, held_connections, send_raw
from hack.attacks.rendezvous_client import frame, refused_at_rendezvous

if TYPE_CHECKING:
    from hack.attacks.target import AttackedJob

MANY = 2000  # connections


@attack("unauthenticated", "malformed", quick=True)
async def hellos_that_are_none_at_the_rendezvous(job: AttackedJob) -> None:
    """Pickles, HTTP, lengths of 4 GiB, numbers for names: closed without an answer, counted."""
    pickled = b"\x80\x04\x95\x1c\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94"
    for sent in (
        b"\xff\xff\xff\xff" + b"a" * 100,
        struct.pack(">I", len(pickled)) + pickled,
        b"GET / HTTP/1.1\r\n\r\n",
        frame([]),
        frame({}),
        frame({"secret": ["x"], "session": {}}),
        struct.pack(">I", 4096) + b"[" * 4096,
    ):
        answer = await send_raw(job.ranks_rendezvous, sent)
        expect(not answer, f"answered {answer!r}")


@attack("unauthenticated", "no_token", "malformed_token", "not_allowed", quick=True)
async def seat_of_a_rank_at_the_rendezvous(job: AttackedJob) -> None:
    """Unauthenticated clients, newcomers and rollouts ask for rank 1's seat: closed, counted."""
    for token in ("", "guess", job.registered().token, job.rollout().token):
        await refused_at_rendezvous(job.ranks_rendezvous, token)


@attack("unauthenticated", "slow_hello", seconds=90)
async def idle_connections_at_the_rendezvous(job: AttackedJob) -> None:
    """2,000 connections that say nothing: the oldest are closed, counted."""
    async with held_connections(job.ranks_rendezvous, MANY):
        await answers(job)


@attack("unauthenticated", "slow_hello", seconds=60)
async def hello_byte_by_byte_at_the_rendezvous(job: AttackedJob) -> None:
    """100 clients that send a byte of their hello each second: closed within 10 s, counted."""
    endpoint = job.ranks_rendezvous
    async with held_connections(endpoint, 100, struct.pack(">I", 4000)) as writers:

        async def all_are_closed() -> bool:
            drip(writers, b" ")
            await asyncio.sleep(1.0)
            return all(writer.transport.is_closing() for writer in writers)

        await job.eventually(all_are_closed, "all slow clients are closed", seconds=40)


@attack("unauthenticated", seconds=60)
async def unfinished_frames_at_the_rendezvous(job: AttackedJob) -> None:
    """120 frames that claim 16 MiB and do not end: closed at the length, no memory for them."""
    claim = struct.pack(">I", 16 << 20) + b"a" * 65536
    async with held_connections(job.ranks_rendezvous, 120, claim):
        await asyncio.sleep(2.0)
        await answers(job)


@attack("unauthenticated", seconds=60)
async def flood_of_connections_at_the_rendezvous(job: AttackedJob) -> None:
    """2,000 clients that connect and leave at once: training goes on."""
    for _ in range(MANY):
        with contextlib.suppress(OSError, TimeoutError):
            async with connection(job.ranks_rendezvous):
                pass
    await answers(job)
