"""The stream of serving rollouts: followed through restarts of the coordinator."""

import asyncio
import ssl
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port

from rollcall_protocol.pod_contract import FRONT_STREAM_ROUTE
from rollcall_protocol.wire.serving_rollouts import ServingRollout, ServingRollouts
from rollcall_runtime.coordinator.state_stream import StateStream
from rollcall_runtime.generation import rollout_stream
from rollcall_runtime.generation.rollout_stream import RolloutStream

A = ServingRollout("cpu-0", "127.0.0.1:7072", "a ticket")
B = ServingRollout("cpu-1", "127.0.0.2:7072", "another")


class Lists:
    """The lists that came; `reach` waits for one."""

    def __init__(self) -> None:
        self.found: list[ServingRollouts] = []
        self._news = asyncio.Event()

    def take(self, serving: ServingRollouts) -> None:
        self.found.append(serving)
        self._news.set()

    async def reach(self, *rollouts: ServingRollout) -> None:
        async with asyncio.timeout(5):
            while not self.found or self.found[-1].rollouts != rollouts:
                self._news.clear()
                await self._news.wait()


def stream_to(port: int, taken: Callable[[ServingRollouts], None]) -> RolloutStream:
    return RolloutStream(
        url=f"http://127.0.0.1:{port}{FRONT_STREAM_ROUTE}",
        token=lambda: "token",
        tls=ssl.create_default_context,
        changed=taken,
    )


async def coordinator(port: int, *rollouts: ServingRollout) -> tuple[TestServer, StateStream, Any]:
    state: Any = SimpleNamespace(rollouts=rollouts)
    stream = StateStream(lambda: ServingRollouts(tuple(state.rollouts)))
    application = web.Application()
    application.router.add_get(FRONT_STREAM_ROUTE, stream.serve)
    server = TestServer(application, port=port)
    await server.start_server(shutdown_timeout=0.05)
    return server, stream, state


async def test_the_list_is_followed_and_holds_while_the_coordinator_restarts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rollout_stream, "FIRST_DELAY", 0.01)
    monkeypatch.setattr(rollout_stream, "LONGEST_DELAY", 0.02)
    port, lists = unused_port(), Lists()
    stream = stream_to(port, lists.take)
    running = asyncio.create_task(stream.run())
    try:
        server, state_stream, state = await coordinator(port, A)
        await lists.reach(A)
        state.rollouts = (A, B)
        state_stream.changed()
        await lists.reach(A, B)
        state_stream.close()
        await server.close()
        while stream.connected:
            await asyncio.sleep(0.001)
        assert lists.found[-1].rollouts == (A, B), "nothing was taken back"
        server, state_stream, _ = await coordinator(port, B)
        await lists.reach(B)
        state_stream.close()
        await server.close()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_what_is_no_list_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_stream, "FIRST_DELAY", 0.01)
    port, lists, asked = unused_port(), Lists(), 0

    async def wrong(_: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.Response(text='{"type": "ServingRollouts", "rollouts": [{"pod": 1}]}\n')

    application = web.Application()
    application.router.add_get(FRONT_STREAM_ROUTE, wrong)
    server = TestServer(application, port=port)
    await server.start_server(shutdown_timeout=0.05)
    running = asyncio.create_task(stream_to(port, lists.take).run())
    try:
        async with asyncio.timeout(5):
            while asked < 2:
                await asyncio.sleep(0.001)
        assert lists.found == []
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await server.close()
