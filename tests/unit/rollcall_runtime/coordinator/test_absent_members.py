"""Members that do not register get reconnect requests; those that still do not are reported."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from rollcall_protocol import pod_contract
from rollcall_protocol.wire.messages import ReconnectRequest, loads
from rollcall_protocol.wire.roster import RosterMember
from rollcall_runtime.coordinator import absent_members
from rollcall_runtime.coordinator.absent_members import MAX_ANSWERED, ReconnectRequester

BOUND = 0.1
REQUEST = ReconnectRequest("127.0.0.9", "coordinator-uid")
TOKEN = "secret"


class FakeCoordinator:
    """A roster of one, who never has a stream, and the reports about it."""

    def __init__(self) -> None:
        self.members: tuple[RosterMember, ...] = (
            RosterMember("uid-1", "pod-1", "127.0.0.1", "cpu"),
        )
        self.reported: asyncio.Queue[str] = asyncio.Queue()
        self.reconnect_now = asyncio.Event()

    def missing(self) -> tuple[RosterMember, ...]:
        return self.members

    def member_unreachable(self, member: RosterMember, reason: str, seconds: float) -> None:
        assert member in self.members
        assert seconds >= BOUND
        self.reported.put_nowait(reason)

    @asynccontextmanager
    async def calling(
        self, port: int, *, bound: float = BOUND, at_once: bool = False
    ) -> AsyncIterator[None]:
        calls = ReconnectRequester(members=self, request=REQUEST, bound=bound, port=port)
        if at_once:
            self.reconnect_now.set()
        task = asyncio.create_task(calls.run())
        try:
            async with asyncio.timeout(20):
                yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def agent(
    port: int, *, status: int = 200
) -> AsyncIterator["asyncio.Queue[ReconnectRequest]"]:
    received: asyncio.Queue[ReconnectRequest] = asyncio.Queue()

    async def summon(request: web.Request) -> web.Response:
        assert "Authorization" not in request.headers, "a rollout could use the token"
        received.put_nowait(loads(await request.text(), ReconnectRequest))
        return web.json_response({"registering": True}, status=status)

    app = web.Application()
    app.router.add_post(pod_contract.REGISTER_ROUTE, summon)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield received
    finally:
        await runner.cleanup()


async def test_a_member_that_is_missing_for_the_bound_is_called(unused_tcp_port: int) -> None:
    world = FakeCoordinator()
    async with agent(unused_tcp_port) as received, world.calling(unused_tcp_port):
        assert await received.get() == REQUEST
        world.members = ()
        await asyncio.sleep(4 * BOUND)
        assert received.qsize() <= 1, "it has registered: no more requests"
        assert world.reported.empty()


async def test_missing_members_can_be_called_at_once(unused_tcp_port: int) -> None:
    world = FakeCoordinator()
    async with (
        agent(unused_tcp_port) as received,
        world.calling(unused_tcp_port, bound=100, at_once=True),
    ):
        assert await received.get() == REQUEST
    async with world.calling(unused_tcp_port, bound=100, at_once=True):
        await asyncio.sleep(BOUND)
        assert world.reported.empty(), "a refused connection is not reported"


async def test_a_container_that_does_not_listen_yet_is_no_news(unused_tcp_port: int) -> None:
    world = FakeCoordinator()
    async with world.calling(unused_tcp_port):
        await asyncio.sleep(6 * BOUND)
        assert world.reported.empty()
        async with agent(unused_tcp_port) as received:
            assert await received.get() == REQUEST, "it is called again when it may have started"


async def test_a_member_that_hangs_is_reported_once(unused_tcp_port: int) -> None:
    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(1)
        writer.transport.abort()

    world = FakeCoordinator()
    server = await asyncio.start_server(hang, "127.0.0.1", unused_tcp_port)
    async with server, world.calling(unused_tcp_port):
        assert await world.reported.get() == "did not answer a reconnect request within 0.1 s"
        await asyncio.sleep(5 * BOUND)
        assert world.reported.empty()
        world.members = ()
        await asyncio.sleep(2 * BOUND)
        world.members = FakeCoordinator().members
        assert "did not answer a reconnect request" in await world.reported.get(), (
            "it was here in between"
        )
        await asyncio.sleep(1)


async def test_a_member_that_answers_and_never_registers_is_reported(
    unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(absent_members, "LONGEST_DELAY", BOUND)
    world = FakeCoordinator()
    async with agent(unused_tcp_port) as received, world.calling(unused_tcp_port):
        assert (
            await world.reported.get()
            == f"answered {MAX_ANSWERED} reconnect requests and opened no stream"
        )
        assert received.qsize() == MAX_ANSWERED


async def test_an_invalid_answer_is_reported(unused_tcp_port: int) -> None:
    world = FakeCoordinator()
    async with agent(unused_tcp_port, status=404), world.calling(unused_tcp_port):
        assert await world.reported.get() == "answered a reconnect request with 404"


async def test_a_redirect_is_reported_and_not_followed(unused_tcp_port: int) -> None:
    asked: list[str] = []

    async def redirect(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=307, headers={"Location": "/elsewhere"})

    app = web.Application()
    app.router.add_post("/{path:.*}", redirect)
    runner, world = web.AppRunner(app, shutdown_timeout=0.1), FakeCoordinator()
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", unused_tcp_port).start()
    async with world.calling(unused_tcp_port):
        assert "it answered 307, a redirect, which is not followed" in await world.reported.get()
    await runner.cleanup()
    assert set(asked) == {pod_contract.REGISTER_ROUTE}
