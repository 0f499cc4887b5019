"""Streams of members: how their ends are detected, reported and survived."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from rollcall_protocol.job_config import MembershipConfig
from rollcall_protocol.membership.message_check import BadMessage
from rollcall_protocol.wire.ids import Lineage, MemberId, SessionId, Version
from rollcall_protocol.wire.job_snapshot import SuspicionCause
from rollcall_protocol.wire.messages import (
    CoordinatorMessage,
    Hello,
    Join,
    MemberMessage,
    SessionReady,
    Stage,
    dumps,
    loads,
)
from rollcall_protocol.wire.weight_manifest import TensorSpec, WeightManifest
from rollcall_runtime.coordinator import member_connections
from rollcall_runtime.coordinator.member_connections import ConnectionLoss, MemberConnections
from rollcall_runtime.membership import long_messages
from rollcall_runtime.membership.coordinator_connection import MemberStream
from tests.unit.rollcall_protocol.wire.made_up_digests import made_up
from tests.unit.rollcall_runtime.credentials import introduced

MEMBER = MemberId("uid-1", "boot-1")
HELLO = Hello("job", "default", MEMBER, "pod", "cpu", "127.0.0.2", "")
BOUND = 0.5


class Coordinator:
    """Listens, and remembers who left and why."""

    def __init__(self, port: int, *, bound: float = BOUND) -> None:
        self.url = f"http://127.0.0.1:{port}/"
        self._port = port
        self.joined: asyncio.Queue[Hello] = asyncio.Queue()
        self.lost: asyncio.Queue[ConnectionLoss] = asyncio.Queue()
        self.connections = MemberConnections(
            self, lambda _: None, suspect_after=bound, heartbeat=bound / 4
        )

    def hello_problem(self, hello: Hello) -> None:
        return None

    def member_connected(self, hello: Hello) -> None:
        self.joined.put_nowait(hello)

    def member_disconnected(self, member: MemberId, loss: ConnectionLoss) -> None:
        assert self.connections.last_received_at(member) is not None, (
            "it is asked how long that took"
        )
        self.lost.put_nowait(loss)

    def refuse(self, member: MemberId, bad: BadMessage) -> None:
        pass

    def member_message(self, member: MemberId, message: MemberMessage) -> None:
        pass

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_get("/", introduced(self.connections.serve, pod="pod", pod_uid="uid-1"))
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self._port).start()
        try:
            async with asyncio.timeout(20):
                yield
        finally:
            await runner.cleanup()


@asynccontextmanager
async def plain_member(coordinator: Coordinator) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """One that says Hello and then only what a test has it say."""
    async with aiohttp.ClientSession() as session, session.ws_connect(coordinator.url) as socket:
        await socket.send_str(dumps(HELLO))
        await coordinator.joined.get()
        yield socket


async def test_a_stream_that_ends_is_reported_as_a_lost_connection(unused_tcp_port: int) -> None:
    coordinator = Coordinator(unused_tcp_port)
    async with coordinator.listening():
        async with plain_member(coordinator) as socket:
            transport = socket._response.connection.transport  # type: ignore[union-attr]
            assert isinstance(transport, asyncio.Transport)
            transport.abort()
            loss = await coordinator.lost.get()
        assert loss.cause is SuspicionCause.CONNECTION_LOST


async def test_a_silent_member_is_reported_with_missed_heartbeats(
    unused_tcp_port: int,
) -> None:
    coordinator = Coordinator(unused_tcp_port)
    async with coordinator.listening(), plain_member(coordinator):
        loss = await coordinator.lost.get()
        assert loss.cause is SuspicionCause.HEARTBEAT_MISSED
        assert loss.reason.startswith("nothing received for 0.")
        assert coordinator.connections.pods == set()


async def test_a_silent_member_that_opens_a_stream_again_was_alive_and_has_longer(
    unused_tcp_port: int,
) -> None:
    coordinator = Coordinator(unused_tcp_port)
    async with coordinator.listening():
        async with plain_member(coordinator):
            await coordinator.lost.get()
        silence = coordinator.connections._silence
        before = silence.seconds(time.monotonic())
        async with plain_member(coordinator):
            assert silence.seconds(time.monotonic()) >= before + 2 * (BOUND - BOUND / 4)


async def test_a_member_that_takes_nothing_any_more_is_found_in_spite_of_full_buffers(
    unused_tcp_port: int,
) -> None:
    coordinator = Coordinator(unused_tcp_port)
    async with coordinator.listening(), plain_member(coordinator) as socket:
        transport = socket._response.connection.transport  # type: ignore[union-attr]
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        for _ in range(24):
            coordinator.connections.send(MEMBER, SessionReady(SessionId(1, 1, 1)))
            coordinator.connections._connections[MEMBER].send("x" * 2**20)
        loss = await coordinator.lost.get()
        transport.abort()
        assert loss.cause is SuspicionCause.HEARTBEAT_MISSED


async def test_a_member_that_reads_nothing_loses_its_stream_before_messages_fill_the_memory(
    unused_tcp_port: int,
) -> None:
    refused: list[str] = []
    coordinator = Coordinator(unused_tcp_port)
    coordinator.connections._refused = refused.append
    async with coordinator.listening(), plain_member(coordinator) as socket:
        transport = socket._response.connection.transport  # type: ignore[union-attr]
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        for _ in range(200):
            coordinator.connections._connections[MEMBER].send("x" * 2**20)
        loss = await coordinator.lost.get()
        transport.abort()
        assert (loss.cause, refused) == (SuspicionCause.CONNECTION_LOST, ["unread_messages"])


async def test_heartbeats_keep_an_idle_stream_open_on_both_sides(unused_tcp_port: int) -> None:
    coordinator = Coordinator(unused_tcp_port)
    async with coordinator.listening():
        stream = MemberStream(
            url=coordinator.url,
            token=lambda: "t",
            hello=lambda: HELLO,
            opened=lambda: None,
            received=lambda _: None,
            bounds=MembershipConfig(0.1, 1.0, 1, heartbeat=0.1, suspect_after=BOUND),
        )
        task = asyncio.create_task(stream.run())
        await coordinator.joined.get()
        await asyncio.sleep(3 * BOUND)
        assert coordinator.lost.empty()
        assert coordinator.joined.empty(), "the member had no reason to connect again"
        stream.close()
        await task
        assert (await coordinator.lost.get()).reason == "closed by the member"


async def test_a_message_to_all_members_is_encoded_once(
    unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[CoordinatorMessage] = []

    def write(message: CoordinatorMessage) -> str:
        written.append(message)
        return dumps(message)

    monkeypatch.setattr(member_connections, "dump_message", write)
    coordinator = Coordinator(unused_tcp_port)
    async with coordinator.listening(), plain_member(coordinator) as socket:
        join = Join(SessionId(1, 1, 1))
        for _ in range(3):
            coordinator.connections.send(MEMBER, join)
            assert await socket.receive_str() == dumps(join)
        assert written.count(join) == 1


async def test_a_long_manifest_is_written_and_read_beside_the_event_loops(
    unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[str] = set()

    def slow(text: str, expected: tuple[type[CoordinatorMessage], ...]) -> CoordinatorMessage:
        threads.add(threading.current_thread().name)
        return loads(text, expected)

    monkeypatch.setattr(long_messages, "loads", slow)
    names = (TensorSpec(f"layer.{i}.weight", "float32", (1, 1), 4 * i, 4) for i in range(5000))
    manifest = WeightManifest(tuple(names), 20000, 2**20, made_up(0))
    stage = Stage(SessionId(1, 1, 1), Version(Lineage(1, 1), 1), manifest)
    received: asyncio.Queue[CoordinatorMessage] = asyncio.Queue()
    coordinator = Coordinator(unused_tcp_port, bound=20.0)  # no test of silence
    async with coordinator.listening():
        stream = MemberStream(
            url=coordinator.url,
            token=lambda: "t",
            hello=lambda: HELLO,
            opened=lambda: None,
            received=received.put_nowait,
            bounds=MembershipConfig(0.1, 1.0, 1, heartbeat=0.1, suspect_after=20.0),
        )
        task = asyncio.create_task(stream.run())
        await coordinator.joined.get()
        coordinator.connections.send(MEMBER, stage)
        coordinator.connections.send(MEMBER, Join(SessionId(1, 1, 1)))
        assert await received.get() == stage
        assert await received.get() == Join(SessionId(1, 1, 1)), "the order is kept"
        stream.close()
        await task
    assert threading.main_thread().name in threads, "the short one"
    assert len(threads) == 2, "the long one"
