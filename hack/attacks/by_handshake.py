"""Clients without a token that make the endpoints with TLS work: handshakes without end."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import TYPE_CHECKING

from hack.attacks.attack import attack, expect
from hack.attacks.by_connection import HELD_SECONDS, answers
from hack.attacks.clients import connection, drip, held_connections

if TYPE_CHECKING:
    from hack.attacks.clients import Endpoint
    from hack.attacks.target import AttackedJob

HALF_OPEN = 600  # connections of each endpoint: more than it lets wait
ADDRESSES = 20
AT_ONCE = 16
FLOOD_SECONDS = 5.0


def tls_endpoints(job: AttackedJob) -> list[Endpoint]:
    """Those that tokens go through."""
    return [endpoint for endpoint in job.http_endpoints if endpoint.tls]


def client_hello(endpoint: Endpoint) -> bytes:
    """How a client begins a handshake."""
    context, begun = ssl.create_default_context(), ssl.MemoryBIO()
    asked = context.wrap_bio(ssl.MemoryBIO(), begun, server_hostname=endpoint.address)
    with contextlib.suppress(ssl.SSLWantReadError):
        asked.do_handshake()
    return begun.read()


def sources_of(job: AttackedJob) -> tuple[str, ...]:
    """Addresses of the attacker."""
    network = job.membership.address.rpartition(".")[0]
    return tuple(f"{network}.{200 + number}" for number in range(ADDRESSES))


@attack("unauthenticated", "slow_header", "tls_handshake", seconds=120)
async def handshakes_that_stop(job: AttackedJob) -> None:
    """600 handshakes of 20 addresses at each endpoint with TLS, whose clients fall silent after
    their first message: closed, counted, and callers get through.
    """
    for endpoint in tls_endpoints(job):
        first, plain = client_hello(endpoint), endpoint.without_tls
        async with held_connections(plain, HALF_OPEN, first, sources=sources_of(job)):
            await answers(job)


@attack("unauthenticated", "slow_header", "tls_handshake", seconds=120)
async def handshakes_byte_by_byte(job: AttackedJob) -> None:
    """200 clients that send a byte of a handshake each second: closed within 5 s, counted."""
    for endpoint in tls_endpoints(job):
        first, plain = client_hello(endpoint), endpoint.without_tls
        async with held_connections(plain, 200, first[:1], sources=sources_of(job)) as writers:
            for number in range(1, 1 + int(HELD_SECONDS)):
                drip(writers, first[number : number + 1])
                await asyncio.sleep(1.0)
            await answers(job)


@attack("unauthenticated", "slow_header", "tls_handshake", seconds=120)
async def handshakes_that_claim_16_mib(job: AttackedJob) -> None:
    """A first message of 16 MiB by its header, in records of 16 KiB: refused in bounded memory."""
    record = b"\x16\x03\x01\x40\x00" + b"\x01\xff\xff\xff" + bytes((1 << 14) - 4)
    more = b"\x16\x03\x01\x40\x00" + bytes(1 << 14)
    for endpoint in tls_endpoints(job):
        async with held_connections(endpoint.without_tls, 50, record) as writers:
            for _ in range(60):
                drip(writers, more)
                await asyncio.sleep(0.01)
            await answers(job)


@attack("unauthenticated", seconds=120)
async def handshakes_one_after_the_other(job: AttackedJob) -> None:
    """16 clients that complete handshakes and leave for 5 s: callers are answered meanwhile."""
    for endpoint in tls_endpoints(job):
        deadline, done = asyncio.get_running_loop().time() + FLOOD_SECONDS, 0

        async def shake_hands(endpoint: Endpoint = endpoint, until: float = deadline) -> None:
            nonlocal done
            while asyncio.get_running_loop().time() < until:
                with contextlib.suppress(OSError, TimeoutError):
                    async with connection(endpoint):
                        done += 1

        async with asyncio.TaskGroup() as flood:
            for _ in range(AT_ONCE):
                flood.create_task(shake_hands())
            await answers(job)
        expect(done > AT_ONCE, f"only {done} handshakes were done")
