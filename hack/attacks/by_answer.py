"""Parts of other jobs that answer the project's clients: a coordinator the operator, a rollout a
front. They answer with floods, with what is compressed, and with redirects.

The attacked job has no operator and no front, so the clients run in this process, beside honest
coordinators and rollouts whose answers must not be late.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from typing import TYPE_CHECKING

from aiohttp import web

from hack.attacks.attack import attack, expect
from hack.attacks.hostile_service import ANSWERS, BODIES, COMPRESSED, POD_UID, REDIRECT
from hack.attacks.operator_links import watched_coordinator
from rollcall_operator.plan.model import LinkFailure
from rollcall_protocol import pod_contract
from rollcall_protocol.prompts.sample_check import SampleBounds
from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_protocol.wire.generation import GenerationRequest
from rollcall_protocol.wire.serving_rollouts import ServingRollout, ServingRollouts
from rollcall_runtime.generation.continued_generation import Generation
from rollcall_runtime.generation.rollout_client import open_session
from tests.unit.rollcall_runtime.rollout.counting_rollouts import (
    POSITIONS,
    VOCABULARY,
    counting_rollout,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from hack.attacks.target import AttackedJob

WATCHED_SECONDS = 12.0
LONGEST_STALL = 1.0  # of this process's event loop, in seconds of its processor time
REQUESTS, REQUEST_SECONDS = 8, 20.0
ASKED_SECONDS = 20.0  # in which the coordinator asks a member that is missing
FAILURES = {
    COMPRESSED: LinkFailure.INCOMPATIBLE,
    REDIRECT: LinkFailure.INCOMPATIBLE,
    "many_reports": None,  # read at the rate of an honest coordinator
}


@contextlib.asynccontextmanager
async def hostile_service(how: str, *, to: str = "") -> AsyncIterator[int]:
    """The port of a process of its own that answers so."""
    command = [sys.executable, "-m", "hack.attacks.hostile_service", how, "--to", to]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield int(await process.stdout.readline())
    finally:
        process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def trap() -> AsyncIterator[tuple[str, list[str]]]:
    """A URL to which no client should come, and who came."""
    came: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        came.append(f"{request.method} {request.path}")
        return web.Response(text="a secret of another service")

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/trap", came
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def no_stall() -> AsyncIterator[None]:
    """NotRefusedError if this process's event loop stood for LONGEST_STALL meanwhile.

    What counts is processor time: other processes of the machine may take its turns.
    """
    longest = 0.0

    async def beat() -> None:
        nonlocal longest
        while True:
            began = time.process_time()
            await asyncio.sleep(0.01)
            longest = max(longest, time.process_time() - began)

    beating = asyncio.create_task(beat())
    try:
        await asyncio.sleep(0)
        yield
        await asyncio.sleep(0.02)
    finally:
        beating.cancel()
    expect(longest < LONGEST_STALL, f"the event loop stood for {longest:.2f} s")


def hostile_coordinator(how: str) -> Callable[[AttackedJob], Awaitable[None]]:
    """The attack by a coordinator on the operator of all jobs."""

    async def run(_: AttackedJob) -> None:
        async with (
            trap() as (url, came),
            hostile_service(how, to=url) as port,
            no_stall(),
            watched_coordinator(port, POD_UID) as link,
        ):
            await asyncio.sleep(WATCHED_SECONDS)
            found, wanted = link.facts, FAILURES.get(how, LinkFailure.EXCESSIVE)
            expect(found.failure is wanted, f"the operator says {found.failure}: {found.detail}")
            expect(not came, f"the operator followed a redirect: {came}")
            expect("secret" not in found.detail, f"it quotes another service: {found.detail}")

    run.__doc__ = (
        f"A coordinator answers the operator's stream with {how.replace('_', ' ')}: the operator's "
        f"event loop never stands for {LONGEST_STALL:g} s, and the job's condition says so."
    )
    return run


for _how in ANSWERS:
    attack("coordinator", name=f"coordinator_{_how}", seconds=90, quick=_how == "newlines")(
        hostile_coordinator(_how)
    )


def hostile_rollout(how: str) -> Callable[[AttackedJob], Awaitable[None]]:
    """The attack by a rollout on the clients of a front."""

    async def run(_: AttackedJob) -> None:
        async with (
            trap() as (url, came),
            hostile_service(how, to=url) as port,
            counting_rollout() as honest,
            open_session() as session,
            no_stall(),
        ):
            generation = Generation(session, lambda: None, SampleBounds(VOCABULARY, POSITIONS))
            hostile = ServingRollout("hostile", f"127.0.0.1:{port}", "")
            generation.replace(ServingRollouts((hostile, honest.serving)))
            try:
                async with asyncio.timeout(REQUEST_SECONDS):
                    await asyncio.gather(*(_answered(generation, n) for n in range(REQUESTS)))
            except TimeoutError:
                expect(False, f"requests of others took more than {REQUEST_SECONDS:g} s")
            for _again in range(REQUESTS):
                chosen = generation.routes.choose((1,), time.monotonic())
                expect(chosen == honest.serving, "the rollout is asked again")
        expect(not came, f"a request went to where a redirect leads: {came}")

    run.__doc__ = (
        f"A rollout answers requests with {how.replace('_', ' ')}: requests of others are answered "
        "by honest rollouts, and this one is left out."
    )
    return run


async def _answered(generation: Generation, number: int) -> None:
    asked = GenerationRequest((number + 1, 2, 3), SamplingConfig(max_tokens=8), seed=number)
    async for _ in generation.generate(asked):
        pass


for _how in (*(b for b in BODIES if not b.endswith("reports")), REDIRECT):
    attack("member", name=f"rollout_{_how}", seconds=60, quick=_how == COMPRESSED)(
        hostile_rollout(_how)
    )


@attack("member", seconds=60)
async def member_that_redirects_the_coordinator(job: AttackedJob) -> None:
    """A pod on the roster answers the coordinator's reconnect requests with 307: no request goes
    to where that leads.
    """
    asked = asyncio.Event()
    async with trap() as (url, came), job.members() as (member,):

        async def redirect(_: web.Request) -> web.Response:
            asked.set()
            return web.Response(status=307, headers={"Location": url})

        application = web.Application()
        application.router.add_post(pod_contract.REGISTER_ROUTE, redirect)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, member.address, pod_contract.AGENT_PORT).start()
        try:
            async with asyncio.timeout(ASKED_SECONDS):
                await asked.wait()
            await asyncio.sleep(1.0)
        except TimeoutError:
            expect(False, "the coordinator did not ask the member")
        finally:
            await runner.cleanup()
    expect(not came, f"the coordinator followed a redirect: {came}")
