"""Strangers where trainer ranks, and the members of a sync session, meet."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from typing import TYPE_CHECKING

from hack.attacks.attack import attack, expect
from hack.attacks.by_connection import answers
from hack.attacks.clients import Door, connection, drip, held_connections, send_raw
from hack.attacks.rendezvous_client import frame, refused_at_rendezvous
from hack.attacks.worker_vitals import listening_ports
from rollcall_protocol import pod_contract

if TYPE_CHECKING:
    from hack.attacks.target import AttackedJob

MANY = 2000  # connections
KNOWN_PORTS = {
    pod_contract.MEMBERSHIP_PORT,
    pod_contract.COMPLETIONS_PORT,
    pod_contract.METRICS_PORT,
    pod_contract.RENDEZVOUS_PORT,
}


def rendezvous(job: AttackedJob) -> list[Door]:
    """That of the ranks, and the trainer's other ports, one of which is the sync sessions'."""
    address = job.ranks_rendezvous.address
    ports = [port for port in listening_ports(address) if port not in KNOWN_PORTS]
    return [job.ranks_rendezvous, *(Door(address, port) for port in ports)]


@attack("stranger", "malformed", quick=True)
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


@attack("stranger", "no_token", "malformed_token", "not_allowed", quick=True)
async def seat_of_a_rank_at_the_rendezvous(job: AttackedJob) -> None:
    """Strangers, newcomers and rollouts ask for rank 1's seat: closed, counted."""
    for token in ("", "guess", job.registered().token, job.rollout().token):
        await refused_at_rendezvous(job.ranks_rendezvous, token)


@attack("stranger", "slow_hello", seconds=90)
async def idle_connections_at_the_rendezvous(job: AttackedJob) -> None:
    """2,000 connections that say nothing, at each rendezvous: the oldest are closed, counted."""
    for door in rendezvous(job):
        async with held_connections(door, MANY):
            await answers(job)


@attack("stranger", "slow_hello", seconds=60)
async def hello_byte_by_byte_at_the_rendezvous(job: AttackedJob) -> None:
    """100 clients that send a byte of their hello each second: closed within 10 s, counted."""
    door = job.ranks_rendezvous
    async with held_connections(door, 100, struct.pack(">I", 4000)) as writers:

        async def all_are_closed() -> bool:
            drip(writers, b" ")
            await asyncio.sleep(1.0)
            return all(writer.transport.is_closing() for writer in writers)

        await job.eventually(all_are_closed, "all slow clients are closed", seconds=40)


@attack("stranger", seconds=60)
async def unfinished_frames_at_the_rendezvous(job: AttackedJob) -> None:
    """120 frames that claim 16 MiB and do not end: closed at the length, no memory for them."""
    for door in rendezvous(job):
        async with held_connections(door, 120, struct.pack(">I", 16 << 20) + b"a" * 65536):
            await asyncio.sleep(2.0)
            await answers(job)


@attack("stranger", seconds=60)
async def flood_of_connections_at_the_rendezvous(job: AttackedJob) -> None:
    """3,000 clients that connect and leave at once, at each rendezvous: training goes on."""
    for door in rendezvous(job):
        for _ in range(MANY + 1000):
            with contextlib.suppress(OSError, TimeoutError):
                async with connection(door):
                    pass
    await answers(job)
