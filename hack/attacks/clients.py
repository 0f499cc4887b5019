"""How an attacker speaks to a worker: raw bytes, HTTP requests, WebSockets."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import aiohttp

from rollcall_runtime.worker.identity.own_tokens import bearer
from rollcall_runtime.worker.identity.tls import client_context
from tests.certificates import authority, certificate_of

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Mapping, Sequence

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 15.0
PIECE_BYTES = 2**16
CLOSED = 0  # in place of a status: the connection was closed without an answer


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A listener of a worker."""

    address: str
    port: int
    tls: bool = False

    def url(self, route: str) -> str:
        """The URL of a route behind it."""
        return f"{'https' if self.tls else 'http'}://{self.address}:{self.port}{route}"

    @property
    def without_tls(self) -> Endpoint:
        """The same, for who speaks no TLS there."""
        return replace(self, tls=False)


async def request(
    endpoint: Endpoint,
    method: str,
    route: str,
    *,
    token: str = "",
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    seconds: float = ANSWER_SECONDS,
) -> int:
    """The status of the answer; CLOSED if there was none. TimeoutError after `seconds`."""
    sent = {**(bearer(token) if token else {}), **(headers or {})}
    if body is not None:
        sent["Content-Length"] = str(len(body))
    data = _pieces(body) if body is not None else None
    timeout = aiohttp.ClientTimeout(total=seconds)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.request(
                method, endpoint.url(route), headers=sent, data=data, ssl=_believing()
            ) as answer,
        ):
            return answer.status
    except TimeoutError:
        raise
    except (aiohttp.ClientError, OSError):
        return CLOSED


async def send_raw(endpoint: Endpoint, data: bytes, *, seconds: float = ANSWER_SECONDS) -> bytes:
    """Send bytes and return what comes until the worker closes, at most `seconds` long."""
    received = bytearray()
    async with connection(endpoint) as (reader, writer):
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(seconds):
                writer.write(data)
                await writer.drain()
                while part := await reader.read(1 << 16):
                    received += part
    return bytes(received)


@contextlib.asynccontextmanager
async def connection(
    endpoint: Endpoint, *, source: str = ""
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection, by TLS if the endpoint speaks it, from the address `source` if given."""
    own = (source, 0) if source else None
    async with asyncio.timeout(CONNECT_SECONDS):
        reader, writer = await asyncio.open_connection(
            endpoint.address,
            endpoint.port,
            local_addr=own,
            ssl=_believing() if endpoint.tls else None,
        )
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def held_connections(
    endpoint: Endpoint, count: int, first_bytes: bytes = b"", *, sources: tuple[str, ...] = ("",)
) -> AsyncIterator[list[asyncio.StreamWriter]]:
    """Up to `count` open connections that have sent `first_bytes`, from each of the sources."""
    async with contextlib.AsyncExitStack() as stack:
        writers = []
        for number in range(count):
            source = sources[number % len(sources)]
            try:
                _, writer = await stack.enter_async_context(connection(endpoint, source=source))
            except (OSError, TimeoutError):
                continue
            writer.write(first_bytes)
            writers.append(writer)
            if number % 50 == 0:
                await asyncio.sleep(0)
        yield writers


def drip(writers: Sequence[asyncio.StreamWriter], data: bytes) -> None:
    """Send a few bytes on each connection that is still open."""
    for writer in writers:
        if not writer.transport.is_closing():
            with contextlib.suppress(OSError):
                writer.write(data)


@contextlib.asynccontextmanager
async def web_socket(
    endpoint: Endpoint, route: str, *, token: str, compress: int = 0
) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """A WebSocket that the worker has accepted; aiohttp.ClientError if it does not."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.ws_connect(
            endpoint.url(route),
            headers=bearer(token),
            max_msg_size=0,
            compress=compress,
            ssl=_believing(),
        ) as socket,
    ):
        yield socket


async def until_closed(socket: aiohttp.ClientWebSocketResponse, *, seconds: float) -> bool:
    """Read and drop messages until the worker ends the stream; False after `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            while (await socket.receive()).type not in _ENDS:
                pass
    except TimeoutError:
        return False
    except (aiohttp.ClientError, OSError):
        return True
    return True


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    """Parts of a body: aiohttp would copy the whole body before it sends the first bytes."""
    for start in range(0, len(body), PIECE_BYTES):
        yield body[start : start + PIECE_BYTES]
        await asyncio.sleep(0)  # in which aiohttp notices that the worker closed


@cache
def _believing() -> ssl.SSLContext:
    return client_context(certificate_of(authority()))


_ENDS = {
    aiohttp.WSMsgType.CLOSE,
    aiohttp.WSMsgType.CLOSING,
    aiohttp.WSMsgType.CLOSED,
    aiohttp.WSMsgType.ERROR,
}
