"""The stream to the coordinator reconnects by itself, and ends only on request."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from rollcall_protocol.job_config import MembershipConfig
from rollcall_protocol.wire.ids import MemberId, SessionId
from rollcall_protocol.wire.messages import (
    CoordinatorMessage,
    Hello,
    Join,
    MemberMessage,
    PromptCredit,
    ReconnectRequest,
    dumps,
    loads,
)
from rollcall_runtime.membership import refused_token
from rollcall_runtime.membership.coordinator_connection import MemberStream
from rollcall_runtime.membership.refused_token import CredentialsRefusedError
from rollcall_runtime.worker.backoff import BackoffDelays

SPOKEN: tuple[type[Hello | PromptCredit], ...] = (Hello, PromptCredit)
HELLO = Hello("job", "default", MemberId("uid-1", "boot-1"), "pod", "cpu", "127.0.0.2", "")
BOUNDS = MembershipConfig(0.1, 1.0, 1, heartbeat=0.1, suspect_after=0.5)
JOIN = Join(SessionId(1, 1, 1))


class Coordinator:
    """Takes streams; each of them says JOIN after Hello and ends when a test says so."""

    def __init__(self, port: int, *, status: int | None = None, hangs: bool = False) -> None:
        self.port, self.status, self.hangs = port, status, hangs
        self.slow = 0.0  # seconds until it takes a stream
        self.received: asyncio.Queue[MemberMessage] = asyncio.Queue()
        self.sockets: list[web.WebSocketResponse] = []
        self.tokens: list[str] = []

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.tokens.append(request.headers["Authorization"].removeprefix("Bearer "))
        if self.status is not None:
            return web.Response(status=self.status)
        await asyncio.sleep(self.slow)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self.sockets.append(socket)
        if self.hangs:
            await asyncio.sleep(60)  # not even pings are answered
        async for frame in socket:
            message = loads(frame.data, SPOKEN)
            self.received.put_nowait(message)
            if isinstance(message, Hello):
                await socket.send_str(dumps(JOIN))
        return socket

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        application = web.Application()
        application.router.add_get("/", self.serve)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port).start()
        try:
            yield
        finally:
            await runner.cleanup()


class Member:
    """A stream, with the messages that it received."""

    def __init__(self, port: int) -> None:
        self.received: asyncio.Queue[CoordinatorMessage] = asyncio.Queue()
        self.opened, self.token = 0, "first"
        self.stream = MemberStream(
            url=f"http://127.0.0.1:{port}/",
            token=lambda: self.token,
            hello=lambda: HELLO,
            opened=self._opened,
            received=self.received.put_nowait,
            bounds=BOUNDS,
        )
        self.task = asyncio.create_task(self.stream.run())

    def _opened(self) -> None:
        self.opened += 1
        self.stream.send(PromptCredit(8))

    async def stop(self) -> None:
        self.stream.close()
        await asyncio.wait_for(self.task, 5)


async def test_it_sends_hello_first_and_receives_from_the_coordinator(unused_tcp_port: int) -> None:
    coordinator = Coordinator(unused_tcp_port)
    async with coordinator.listening(), asyncio.timeout(10):
        member = Member(unused_tcp_port)
        assert await coordinator.received.get() == HELLO
        assert await coordinator.received.get() == PromptCredit(8)
        assert await member.received.get() == JOIN
        assert member.stream.connected
        await member.stop()
        assert not member.stream.connected


async def test_it_waits_for_a_coordinator_and_comes_back_to_it(unused_tcp_port: int) -> None:
    coordinator = Coordinator(unused_tcp_port)
    member = Member(unused_tcp_port)
    await asyncio.sleep(0.05)
    assert not member.stream.connected
    member.stream.send(PromptCredit(1))
    async with coordinator.listening(), asyncio.timeout(10):
        assert await coordinator.received.get() == HELLO
        assert await coordinator.received.get() == PromptCredit(8), "earlier credits are dropped"
        await coordinator.sockets[0].close()
        assert await coordinator.received.get() == HELLO
        assert await coordinator.received.get() == PromptCredit(8)
        assert member.opened == 2
        await member.stop()


async def test_a_long_wait_for_a_coordinator_does_not_delay_the_way_back_to_it(
    unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = Coordinator(unused_tcp_port)
    member = Member(unused_tcp_port)
    delays, wait = list[float](), member.stream._wait

    async def record_backoff(backoff: BackoffDelays) -> None:
        delays.append(backoff._bound)
        await wait(backoff)

    monkeypatch.setattr(member.stream, "_wait", record_backoff)
    async with asyncio.timeout(10):
        while len(delays) < 4:
            await asyncio.sleep(0.01)
        assert delays[-1] > 4 * delays[0]
        async with coordinator.listening():
            await coordinator.received.get()
            await coordinator.sockets[0].close()
            while member.opened < 2:
                await coordinator.received.get()
            assert delays[-1] == delays[0]
            await member.stop()


async def test_a_token_that_is_refused_for_long_ends_it(
    unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refused_token, "REFUSED_SECONDS", 0.5)
    coordinator = Coordinator(unused_tcp_port, status=401)
    async with coordinator.listening(), asyncio.timeout(10):
        with pytest.raises(CredentialsRefusedError, match="has refused this pod's token for"):
            await Member(unused_tcp_port).task
    assert len(coordinator.tokens) > 1


async def test_each_attempt_shows_the_token_that_is_there_by_then(unused_tcp_port: int) -> None:
    coordinator = Coordinator(unused_tcp_port, status=401)
    async with coordinator.listening(), asyncio.timeout(10):
        member = Member(unused_tcp_port)
        while not coordinator.tokens:
            await asyncio.sleep(0.01)
        member.token, coordinator.status = "renewed", None
        assert await coordinator.received.get() == HELLO
        assert (coordinator.tokens[0], coordinator.tokens[-1]) == ("first", "renewed")
        await member.stop()


async def test_closed_while_it_waits_it_ends_at_once(unused_tcp_port: int) -> None:
    member = Member(unused_tcp_port)
    await asyncio.sleep(0.05)
    await member.stop()


@pytest.mark.parametrize("caller", ["127.0.0.1", "127.0.0.9"])
async def test_a_call_changes_nothing_while_the_coordinators_name_leads_to_the_open_stream(
    unused_tcp_port: int, caller: str
) -> None:
    """Whoever calls, and whatever address it names: a call needs no token."""
    coordinator = Coordinator(unused_tcp_port)
    async with coordinator.listening(), asyncio.timeout(10):
        member = Member(unused_tcp_port)
        while member.opened < 1:
            await asyncio.sleep(0.01)
        for _ in range(5):
            assert not await member.stream.reconnect(ReconnectRequest(caller, "uid"))
        await asyncio.sleep(0.3)
        assert member.opened == 1
        await member.stop()


async def test_a_call_has_it_open_another_stream_once_the_name_leads_elsewhere(
    unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = Coordinator(unused_tcp_port)
    async with coordinator.listening(), asyncio.timeout(10):
        member = Member(unused_tcp_port)
        while member.opened < 1:
            await asyncio.sleep(0.01)

        async def moved() -> frozenset[str]:
            return frozenset({"127.0.0.9"})

        monkeypatch.setattr(member.stream, "_look_up", moved)
        assert await member.stream.reconnect(ReconnectRequest("127.0.0.9", "uid"))
        while member.opened < 2:
            await asyncio.sleep(0.01)
        await member.stop()


async def test_calls_without_a_stream_have_it_try_again_once_a_second(unused_tcp_port: int) -> None:
    member = Member(unused_tcp_port)
    await asyncio.sleep(0.05)
    answers = [await member.stream.reconnect(ReconnectRequest("", "")) for _ in range(5)]
    assert answers == [True, False, False, False, False]
    await member.stop()


async def test_a_coordinator_that_is_slow_to_take_a_stream_has_longer_each_time(
    unused_tcp_port: int,
) -> None:
    coordinator = Coordinator(unused_tcp_port)
    coordinator.slow = 2 * BOUNDS.suspect_after
    async with coordinator.listening(), asyncio.timeout(10):
        member = Member(unused_tcp_port)
        assert await member.received.get() == JOIN
        assert len(coordinator.tokens) == 2, "the first attempt was given up"
        await member.stop()


@pytest.mark.parametrize(("leads_to", "streams"), [("127.0.0.1", 0), ("127.0.0.9", 1)])
async def test_a_long_attempt_is_given_up_only_once_the_name_leads_elsewhere(
    unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch, leads_to: str, streams: int
) -> None:
    coordinator = Coordinator(unused_tcp_port)
    coordinator.slow = 60.0
    async with coordinator.listening(), asyncio.timeout(10):
        member = Member(unused_tcp_port)
        while len(coordinator.tokens) < 2:
            await asyncio.sleep(0.01)
        coordinator.slow = 0.0

        async def look_up() -> frozenset[str]:
            return frozenset({leads_to})

        monkeypatch.setattr(member.stream, "_look_up", look_up)
        await member.stream.reconnect(ReconnectRequest(leads_to, "uid"))
        await asyncio.sleep(0.3)
        assert member.opened == streams
        member.stream.close()
        member.task.cancel()


async def test_a_silence_of_the_coordinator_counts_once_it_answers_again(
    unused_tcp_port: int,
) -> None:
    coordinator = Coordinator(unused_tcp_port, hangs=True)
    async with coordinator.listening(), asyncio.timeout(10):
        member = Member(unused_tcp_port)
        before = member.stream._silence.seconds(time.monotonic())
        while member.opened < 2:
            await asyncio.sleep(0.01)
        assert member.stream._silence.seconds(time.monotonic()) >= before + 1.0
        await member.stop()


async def test_it_leaves_a_coordinator_that_has_fallen_silent(unused_tcp_port: int) -> None:
    coordinator = Coordinator(unused_tcp_port, hangs=True)
    async with coordinator.listening(), asyncio.timeout(10):
        member = Member(unused_tcp_port)
        while member.opened < 2:
            await asyncio.sleep(0.01)
        await member.stop()


async def test_a_call_of_the_coordinator_that_it_connects_to_just_now_changes_nothing(
    unused_tcp_port: int,
) -> None:
    coordinator = Coordinator(unused_tcp_port)
    async with coordinator.listening(), asyncio.timeout(10):
        member = Member(unused_tcp_port)
        await member.stream.reconnect(ReconnectRequest("127.0.0.1", "uid"))
        assert await member.received.get() == JOIN
        await asyncio.sleep(0.3)
        assert member.opened == 1
        await member.stop()
