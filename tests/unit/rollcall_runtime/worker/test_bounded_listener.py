"""Unauthenticated clients that hold connections cost other clients nothing, and little memory."""

import asyncio
import contextlib
import os
import resource
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import aiohttp
import pytest
from aiohttp import web

from rollcall_runtime.worker.bounded_listener import (
    FAREWELL_SECONDS,
    MAX_HEADER_BYTES,
    BoundedRunner,
    ConnectionBounds,
)
from rollcall_runtime.worker.file_limit import file_limit, raise_file_limit
from rollcall_runtime.worker.identity.tls import ServerCertificate, TlsContext, client_context
from tests.certificates import authority, certificate_of, show

SMALL = ConnectionBounds(open_of_peer=20, waiting=8, waiting_of_peer=4, header_seconds=30.0)


@asynccontextmanager
async def listener(
    port: int, bounds: ConnectionBounds = SMALL, tls: TlsContext | None = None
) -> AsyncIterator[list[str]]:
    """A listener on 127.0.0.1; yields what it refused."""
    refused: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        known = "Authorization" in request.headers
        return web.Response(text="ok", status=200 if known else 401)

    async def take(request: web.Request) -> web.Response:
        BODIES.append("begun")
        try:
            return web.Response(text=f"{len(await request.read())} bytes")
        finally:
            BODIES.append("over")

    app = web.Application()
    app.router.add_get("/", answer)

    async def give(_: web.Request) -> web.Response:
        return web.Response(body=bytes(GIVEN_BYTES))

    app.router.add_post("/", take)
    app.router.add_get("/much", give)
    runner = BoundedRunner(
        app, refused=refused.append, bounds=bounds, shutdown_timeout=0.1, tls=tls
    )
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        async with asyncio.timeout(20):
            yield refused
    finally:
        await runner.cleanup()


GIVEN_BYTES = 32 << 20  # more than the kernel keeps for a client
SLOWLY = b"GET /much HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


OPENED: list[asyncio.StreamWriter] = []
BODIES: list[str] = []  # what became of those that were posted


@pytest.fixture(autouse=True)
async def close_streams() -> AsyncIterator[None]:
    yield
    BODIES.clear()
    while OPENED:
        OPENED.pop().close()


async def connect(port: int, source: str = "127.0.0.1") -> Stream:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
    OPENED.append(writer)
    return reader, writer


def reading(writer: asyncio.StreamWriter) -> asyncio.Transport:
    return cast("asyncio.Transport", writer.transport)


async def ended(reader: asyncio.StreamReader) -> bool:
    """Whether the other end closes or resets the connection, without an answer."""
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


async def get(port: int, **headers: str) -> int:
    url = f"http://127.0.0.1:{port}/"
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        return answer.status


async def test_a_newcomer_gets_through_while_outsiders_hold_all_that_they_can(
    unused_tcp_port: int,
) -> None:
    async with listener(unused_tcp_port) as refused:
        sources = [f"127.0.1.{number}" for number in range(1, 51)]
        idle = [await connect(unused_tcp_port, source) for source in sources]
        assert await get(unused_tcp_port, Authorization="member") == 200
        first, _ = idle[0]
        assert await ended(first), "the one that waited longest was closed"
        assert set(refused) == {"slow_header"}
        assert len(refused) >= len(sources) - SMALL.waiting


async def test_one_address_may_not_have_all_that_wait(unused_tcp_port: int) -> None:
    async with listener(unused_tcp_port) as refused:
        other, _ = await connect(unused_tcp_port, "127.0.1.2")
        for _ in range(30):
            await connect(unused_tcp_port, "127.0.1.1")
        await asyncio.sleep(0.1)
        assert len(refused) == 30 - SMALL.waiting_of_peer
        assert not other.at_eof()


async def test_one_address_may_not_have_all_that_are_open(unused_tcp_port: int) -> None:
    async with listener(unused_tcp_port) as refused:
        request = b"GET / HTTP/1.1\r\nHost: a\r\nAuthorization: b\r\n\r\n"
        streams = []
        for _ in range(SMALL.open_of_peer):
            reader, writer = await connect(unused_tcp_port, "127.0.1.1")
            writer.write(request)
            assert b"200" in await reader.readline()
            streams.append((reader, writer))
        reader, _ = await connect(unused_tcp_port, "127.0.1.1")
        assert await ended(reader)
        assert refused == ["too_many_connections"]
        assert await get(unused_tcp_port, Authorization="member") == 200
        streams[0][1].close()
        await asyncio.sleep(0.1)
        reader, writer = await connect(unused_tcp_port, "127.0.1.1")
        writer.write(request)
        assert b"200" in await reader.readline()


@pytest.mark.parametrize("header", [b"", b"GET / HTTP/1.1\r\nHost: a\r\n"])
async def test_a_header_that_does_not_end_is_not_waited_for(
    unused_tcp_port: int, header: bytes
) -> None:
    async with listener(unused_tcp_port, ConnectionBounds(header_seconds=0.1)) as refused:
        reader, writer = await connect(unused_tcp_port)
        writer.write(header)
        async with asyncio.timeout(5):
            assert await ended(reader)
        assert refused == ["slow_header"]


async def test_a_header_has_longer_while_this_process_runs_late(unused_tcp_port: int) -> None:
    async with listener(unused_tcp_port, ConnectionBounds(header_seconds=0.2)) as refused:
        reader, writer = await connect(unused_tcp_port)
        await asyncio.sleep(0.05)
        time.sleep(0.4)  # noqa: ASYNC251 - what is tested: the timer is late, the header later
        await asyncio.sleep(0.3)
        assert refused == []
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer t\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")


async def test_a_header_longer_than_the_bound_is_refused(unused_tcp_port: int) -> None:
    async with listener(unused_tcp_port) as refused:
        for piece in (1, MAX_HEADER_BYTES):
            reader, writer = await connect(unused_tcp_port)
            head = b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * MAX_HEADER_BYTES
            for start in range(0, MAX_HEADER_BYTES * 2, piece * 100):
                writer.write(head[start : start + piece * 100])
            assert await ended(reader)
        assert refused == ["long_header"] * 2


@pytest.mark.parametrize(
    "field", [b"Content-Length: 1\r\nContent-Length: 2", b"Content-Length: -1", b"\xff\xfe: x"]
)
async def test_what_is_no_request_is_counted_and_leaves_no_traceback(
    unused_tcp_port: int, caplog: pytest.LogCaptureFixture, field: bytes
) -> None:
    async with listener(unused_tcp_port) as refused:
        reader, writer = await connect(unused_tcp_port)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n" + field + b"\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.0 400")
        assert refused == ["malformed_request"]
    assert [record for record in caplog.records if record.exc_info] == []


async def test_a_refused_requests_connection_is_closed(unused_tcp_port: int) -> None:
    async with listener(unused_tcp_port):
        for path, status in (("/", b"401"), ("/unknown", b"404")):
            reader, writer = await connect(unused_tcp_port)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            assert status in await reader.readline()
            await reader.read()  # to its end


def test_the_soft_limit_of_files_becomes_the_hard_one() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        raise_file_limit()
        assert file_limit() == min(hard, 2**20)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# --- TLS -----------------------------------------------------------------------------------------


@pytest.fixture
def certificate(tmp_path: Path) -> TlsContext:
    return ServerCertificate(show(tmp_path, "localhost")).context


def transport_of(writer: asyncio.StreamWriter) -> asyncio.Transport:
    return cast("asyncio.Transport", writer.transport)


def _unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def get_by_tls(port: int) -> int:
    believed = client_context(certificate_of(authority()))
    async with (
        aiohttp.ClientSession() as session,
        session.get(
            f"https://localhost:{port}/", headers={"Authorization": "member"}, ssl=believed
        ) as answer,
    ):
        return answer.status


async def test_a_newcomer_gets_through_by_tls_while_outsiders_hold_all_that_they_can(
    unused_tcp_port: int, certificate: TlsContext
) -> None:
    async with listener(unused_tcp_port, tls=certificate) as refused:
        sources = [f"127.0.1.{number}" for number in range(1, 51)]
        idle = [await connect(unused_tcp_port, source) for source in sources]
        assert await get_by_tls(unused_tcp_port) == 200
        first, _ = idle[0]
        assert await ended(first), "the one that waited longest was closed"
        assert set(refused) == {"slow_header"}


async def test_a_handshake_that_does_not_end_is_not_waited_for(
    unused_tcp_port: int, certificate: TlsContext
) -> None:
    bounds = ConnectionBounds(header_seconds=0.2)
    async with listener(unused_tcp_port, bounds, certificate) as refused:
        reader, _ = await connect(unused_tcp_port)
        async with asyncio.timeout(5):
            assert await ended(reader)
        assert refused == ["slow_header"]
        async with asyncio.timeout(5):
            assert await get_by_tls(unused_tcp_port) == 200


@pytest.mark.parametrize(
    "first", [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\x00" * 100, b"\x16\x03\x01\x00\x05aaaaa"]
)
async def test_what_is_no_handshake_is_refused_and_counted_once(
    unused_tcp_port: int, certificate: TlsContext, first: bytes
) -> None:
    async with listener(unused_tcp_port, tls=certificate) as refused:
        reader, writer = await connect(unused_tcp_port)
        writer.write(first)
        with contextlib.suppress(ConnectionError):
            await reader.read()
        await eventually_equal(refused, ["tls_handshake"])
        assert await get_by_tls(unused_tcp_port) == 200


async def test_a_client_that_leaves_in_the_handshake_leaves_nothing(
    unused_tcp_port: int, certificate: TlsContext
) -> None:
    bounds = ConnectionBounds(open_of_peer=2, header_seconds=30.0)
    async with listener(unused_tcp_port, bounds, certificate) as refused:
        for left in range(4):
            _, writer = await connect(unused_tcp_port)
            writer.write(b"\x16\x03\x01")
            await writer.drain()
            writer.close()
            await eventually_equal(refused, ["tls_handshake"] * (left + 1))
        assert await get_by_tls(unused_tcp_port) == 200


@pytest.mark.parametrize("end", [b"", b"no record of TLS"])
async def test_a_client_that_leaves_in_its_body_leaves_no_traceback(
    unused_tcp_port: int, certificate: TlsContext, caplog: pytest.LogCaptureFixture, end: bytes
) -> None:
    async with listener(unused_tcp_port, tls=certificate):
        _, writer = await asyncio.open_connection("127.0.0.1", unused_tcp_port, ssl=_unverified())
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhalf")
        await eventually_equal(BODIES, ["begun"])
        os.write(writer.get_extra_info("socket").fileno(), end)
        writer.transport.abort()
        await eventually_equal(BODIES, ["begun", "over"])
        assert await get_by_tls(unused_tcp_port) == 200
    assert [record for record in caplog.records if record.exc_info] == []


async def eventually_equal(found: list[str], expected: list[str]) -> None:
    deadline = asyncio.get_running_loop().time() + 5
    while found != expected and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.01)
    assert found == expected


async def test_a_refused_client_that_does_not_confirm_the_end_is_not_waited_for(
    unused_tcp_port: int, certificate: TlsContext
) -> None:
    bounds = ConnectionBounds(open_of_peer=1, header_seconds=30.0)
    async with listener(unused_tcp_port, bounds, certificate):
        silent = await asyncio.to_thread(refused_and_silent, unused_tcp_port)
        with silent:
            await asyncio.sleep(2 * FAREWELL_SECONDS)
            assert await get_by_tls(unused_tcp_port) == 200, "its place is free"


def refused_and_silent(port: int) -> ssl.SSLSocket:
    """A client whose request was refused, and which reads no more."""
    believed = client_context(certificate_of(authority()))
    made = believed.wrap_socket(
        socket.create_connection(("127.0.0.1", port), 5), server_hostname="localhost"
    )
    made.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert made.recv(12) == b"HTTP/1.1 401"
    return made


async def test_clients_that_say_nothing_cost_no_memory_for_tls(
    unused_tcp_port: int, certificate: TlsContext
) -> None:
    async with listener(unused_tcp_port, tls=certificate):
        for _ in range(3):
            await connect(unused_tcp_port)
        await asyncio.sleep(0.1)
        handshakes = [
            task for task in asyncio.all_tasks() if "_shake_hands" in repr(task.get_coro())
        ]
        assert handshakes == []
        assert await get_by_tls(unused_tcp_port) == 200


async def test_a_compressed_body_is_refused_and_not_read(unused_tcp_port: int) -> None:
    async with listener(unused_tcp_port) as refused, aiohttp.ClientSession() as session:
        url, headers = f"http://127.0.0.1:{unused_tcp_port}/", {"Content-Encoding": "deflate"}
        async with session.post(url, data=b"whatever it is", headers=headers) as answer:
            assert answer.status == 415
            assert "without Content-Encoding" in await answer.text()
    assert (refused, BODIES) == (["encoded_body"], [])


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
async def test_a_client_that_does_not_read_its_answer_is_dropped(
    unused_tcp_port: int, certificate: TlsContext, tls: bool
) -> None:
    bounds = ConnectionBounds(unread_seconds=0.2)
    async with listener(unused_tcp_port, bounds, certificate if tls else None) as refused:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", unused_tcp_port, ssl=_unverified() if tls else None
        )
        OPENED.append(writer)
        transport_of(writer).pause_reading()
        writer.write(b"GET /much HTTP/1.1\r\nHost: a\r\n\r\n")
        await eventually_equal(refused, ["slow_reader"])
        transport_of(writer).resume_reading()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            assert len(await reader.read()) < GIVEN_BYTES


async def test_a_client_that_reads_slowly_gets_all_of_its_answer(unused_tcp_port: int) -> None:
    async with listener(unused_tcp_port, ConnectionBounds(unread_seconds=0.2)) as refused:
        client = socket.create_connection(("127.0.0.1", unused_tcp_port))
        client.setblocking(False)
        loop, received = asyncio.get_running_loop(), 0
        with client:
            await loop.sock_sendall(client, SLOWLY)
            while part := await loop.sock_recv(client, 2 << 20):
                received += len(part)
                await asyncio.sleep(0.03)
        assert received > GIVEN_BYTES
        assert refused == []


async def test_requests_that_are_sent_before_answers_are_read_take_bounded_memory(
    unused_tcp_port: int,
) -> None:
    async with listener(unused_tcp_port, ConnectionBounds(unread_seconds=0.5)) as refused:
        _, writer = await connect(unused_tcp_port)
        transport_of(writer).pause_reading()
        asked = b"GET /much HTTP/1.1\r\nHost: a\r\n\r\n" * 1000
        sent = 0
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(5):
                while sent < 64 << 20 and not writer.transport.is_closing():
                    writer.write(asked)
                    await writer.drain()
                    sent += len(asked)
        assert sent < 64 << 20, "requests were read on while nothing could be answered"
        await eventually_equal(refused, ["slow_reader"])
