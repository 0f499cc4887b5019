"""Completions of a member that holds no lease: many, long, slow, doubled, of other jobs."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from hack.attacks.attack import attack, expect
from hack.attacks.by_connection import HELD_SECONDS, answers, opening
from hack.attacks.by_message import CLOSE_SECONDS
from hack.attacks.by_route import post_completion
from hack.attacks.clients import drip, held_connections, request, until_closed
from rollcall_protocol import pod_contract

if TYPE_CHECKING:
    from hack.attacks.target import AttackedJob, Attacker

REFUSED = {0, 400, 403, 408, 409, 413, 503}
MIB = 1 << 20
REGISTER_SECONDS = 1.0  # from a Hello until the coordinator knows its sender


async def post(job: AttackedJob, member: Attacker, body: bytes) -> int:
    """The status of the answer to a completion with a member's token."""
    route = pod_contract.COMPLETIONS_ROUTE
    return await request(job.completions, "POST", route, token=member.token, body=body)


@attack("member", "duplicate_completion")
async def completions_of_no_lease(job: AttackedJob) -> None:
    """300 completions of leases that the sender does not hold, each twice: 409, counted."""
    async with job.members() as (member,):
        for number in range(300):
            for _ in range(2):
                lease = f"1.1.{number}"
                status = await post_completion(job, member, in_the_name_of=member, lease=lease)
                expect(status == 409, f"a completion of no lease was answered {status}")


@attack("member", "wrong_job_completion")
async def completions_of_another_job(job: AttackedJob) -> None:
    """A completion that names another job: 409, counted."""
    async with job.members() as (member,):
        body = {
            "type": "Completion",
            "job_uid": "another",
            "member": {"pod_uid": member.uid, "boot_id": "b"},
            "lease_id": "1.1.1",
            "version": {"lineage": {"epoch": 1, "boot": 1}, "number": 0},
            "samples": [],
        }
        status = await post(job, member, json.dumps(body).encode())
        expect(status == 409, f"a completion of another job was answered {status}")


@attack("member", "malformed")
async def completions_that_are_none(job: AttackedJob) -> None:
    """No JSON, deep JSON, other bytes, other messages: 400, counted."""
    async with job.members() as (member,):
        for body in (b"", b"{", b"\xff\xfe", b"[" * 10**5, b"null", b'{"type":"Hello"}', b"7"):
            status = await post(job, member, body)
            expect(status == 400, f"{body[:20]!r} was answered {status}")


@attack("member", "malformed", quick=True)
async def completions_with_tokens_of_70_bits(job: AttackedJob) -> None:
    """20 completions with the token 2^70: refused, counted; the sender is excluded for good."""
    async with job.members() as (member,):
        async with job.member_stream(member) as socket:
            sample = {"tokens": [2**70], "logprobs": [-1.0], "versions": [0], "reward": 1.0}
            body = {
                "type": "Completion",
                "job_uid": job.uid,
                "member": {"pod_uid": member.uid, "boot_id": "boot"},
                "lease_id": "1.1.1",
                "version": {"lineage": {"epoch": 1, "boot": 1}, "number": 0},
                "samples": [sample],
            }
            await asyncio.sleep(REGISTER_SECONDS)
            for _ in range(20):
                status = await post(job, member, json.dumps(body).encode())
                expect(status in REFUSED, f"a token of 71 bits was answered {status}")
            expect(await until_closed(socket, seconds=CLOSE_SECONDS), "the liar's stream is open")
        async with job.member_stream(member, boot="again") as socket:
            expect(await until_closed(socket, seconds=CLOSE_SECONDS), "the liar came back")


@attack("member", "long_body", quick=True)
async def long_completions_at_once(job: AttackedJob) -> None:
    """40 completions of 63 MiB at once: refused before they are read, counted."""
    body = b"[" + b"1," * (31 * MIB) + b"1]"
    async with job.members() as (member,):
        statuses = await asyncio.gather(*(post(job, member, body) for _ in range(40)))
        expect(set(statuses) <= REFUSED, f"long completions were answered {set(statuses)}")


@attack("member", "slow_body", "too_many_completions", seconds=60)
async def completions_that_never_end(job: AttackedJob) -> None:
    """200 completions whose bodies stop in the middle: given up, counted; others are taken."""
    async with job.members() as (member,):
        header = opening(job.completions, "POST", pod_contract.COMPLETIONS_ROUTE)
        header += f"Authorization: Bearer {member.token}\r\nContent-Length: 9999\r\n\r\n{{".encode()
        async with held_connections(job.completions, 200, header) as writers:
            for _ in range(int(HELD_SECONDS) * 5):
                drip(writers, b" ")
                await asyncio.sleep(1.0)
            await answers(job)
