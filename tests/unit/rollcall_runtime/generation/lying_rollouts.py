"""Rollouts whose endpoints answer as a test says."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.test_utils import unused_port

from rollcall_protocol.pod_contract import GENERATE_ROUTE
from rollcall_protocol.wire.serving_rollouts import ServingRollout
from tests.unit.rollcall_runtime.rollout.counting_rollouts import ADDRESS


@asynccontextmanager
async def rollout(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> AsyncIterator[ServingRollout]:
    """A rollout whose endpoint is `answer`."""
    application = web.Application()
    application.router.add_post(GENERATE_ROUTE, answer)
    runner, port = web.AppRunner(application, shutdown_timeout=0.1), unused_port()
    await runner.setup()
    await web.TCPSite(runner, ADDRESS, port).start()
    try:
        yield ServingRollout("liar", f"{ADDRESS}:{port}", "")
    finally:
        await runner.cleanup()


@asynccontextmanager
async def liar(
    *chunks: bytes, status: int = 200, endless: bool = False
) -> AsyncIterator[ServingRollout]:
    """A rollout that says `chunks`, and the last one again and again if `endless`."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        while endless:
            await response.write(chunks[-1])
        return response

    async with rollout(answer) as serving:
        yield serving
