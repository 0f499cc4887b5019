"""A stream of states: changes go at once, and no more of them than its readers take."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from rollcall_operator.control import report_stream
from rollcall_protocol.wire.messages import dumps
from rollcall_protocol.wire.serving_rollouts import ServingRollout, ServingRollouts
from rollcall_runtime.coordinator import state_stream
from rollcall_runtime.coordinator.state_stream import StateStream


class State:
    """A list that grows with each change."""

    def __init__(self) -> None:
        self.count = 0
        self.stream = StateStream(self.get)

    def get(self) -> ServingRollouts:
        return ServingRollouts((ServingRollout(str(self.count), "a", "t"),))

    def change(self) -> None:
        self.count += 1
        self.stream.changed()


@pytest.fixture
async def state() -> AsyncIterator[tuple[State, aiohttp.StreamReader]]:
    state, application = State(), web.Application()
    application.router.add_get("/", state.stream.serve)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    async with asyncio.timeout(20), aiohttp.ClientSession() as session, session.get(url) as answer:
        yield state, answer.content
    await runner.cleanup()


async def test_changes_in_quick_succession_are_one_report(
    state: tuple[State, aiohttp.StreamReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_stream, "REPORT_SECONDS", 1.0)
    changing, content = state
    assert b'"0"' in await content.readline()
    for _ in range(10):
        changing.change()
        await asyncio.sleep(0)
    changing.stream.close()
    assert [line async for line in content] == [f"{dumps(changing.get())}\n".encode()]


async def test_heartbeats_go_on_while_what_changes_changes_back(
    state: tuple[State, aiohttp.StreamReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_stream, "HEARTBEAT_SECONDS", 0.2)
    changing, content = state
    assert b'"0"' in await content.readline()

    async def flap() -> None:
        while True:
            changing.stream.changed()
            await asyncio.sleep(0.02)

    flapping = asyncio.create_task(flap())
    try:
        async with asyncio.timeout(10):
            assert [await content.readline(), await content.readline()] == [b"\n", b"\n"]
    finally:
        flapping.cancel()
        changing.stream.close()


def test_the_pause_grows_with_the_report() -> None:
    bound = state_stream.REPORT_BYTES_EACH_SECOND
    assert state_stream._pause("x" * 100) == state_stream.REPORT_SECONDS
    assert state_stream._pause("x" * bound) == 1.0


def test_an_honest_coordinator_stays_within_what_the_operator_reads() -> None:
    assert state_stream.REPORT_SECONDS >= report_stream.REPORT_SECONDS
    assert report_stream.BOUNDS.bytes_each_second >= state_stream.REPORT_BYTES_EACH_SECOND * 4
    assert report_stream.BOUNDS.idle_each_second > 1 / state_stream.HEARTBEAT_SECONDS
