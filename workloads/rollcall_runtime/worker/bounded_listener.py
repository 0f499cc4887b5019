"""Listeners that unauthenticated clients cannot fill: what a connection costs before its request.

A connection waits until the header of its first request is whole. Only so many wait, in all and of
one address; when there are more the one that has waited longest is closed, so that a newcomer, who
sends its header at once, gets through. A refused request's connection is closed.

With TLS a connection is let in before its handshake, which has to end within the same time. While
this process's event loop runs late a connection has longer, up to STRETCH_LIMIT times as long.

What is sent to a client waits in memory until the client reads it. One that reads too little of it
is dropped.
"""

import asyncio
import logging
import socket
import ssl
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

from aiohttp import web
from aiohttp.http import HttpProcessingError

from rollcall_protocol.membership.stretched_bounds import STRETCH_LIMIT, SilenceBound
from rollcall_runtime.worker.file_limit import file_limit
from rollcall_runtime.worker.identity.tls import TlsContext
from rollcall_runtime.worker.log_rate import REPEATED

log = logging.getLogger(__name__)

MAX_HEADER_BYTES = 4096
HEADER_SECONDS = 5.0  # on an idle machine
TURNS = 6  # of the event loops of both ends, until TLS and a header are through
UNREAD_BYTES = 64 << 10  # that wait in memory before a handler waits, too
UNREAD_SECONDS, LEAST_READ_BYTES = 30.0, 128 << 10
FAREWELL_SECONDS = 0.1  # for a peer to confirm that its TLS connection ends
WAITING, WAITING_OF_PEER = 256, 64  # connections whose header is not whole yet
OPEN_OF_PEER = 1024
BACKLOG = 1024
_BYTES_ACKED = 120  # where struct tcp_info of Linux has it
_HEADER_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """Numbers of connections, the seconds in which the first header has to be whole, and those in
    which a client takes LEAST_READ_BYTES of what waits for it.
    """

    open_of_peer: int = OPEN_OF_PEER
    waiting: int = WAITING
    waiting_of_peer: int = WAITING_OF_PEER
    header_seconds: float = HEADER_SECONDS
    unread_seconds: float = UNREAD_SECONDS


class BoundedRunner(web.AppRunner):
    """Runs `app` on a listener with bounds. `refused` counts, by kind, what was not let in.

    It takes no compressed bodies (415). With `tls` it speaks nothing else. Of a body about
    `read_bufsize` bytes are read before its handler asks for it. With `handler_cancellation` a
    handler ends when its client leaves.
    """

    def __init__(
        self,
        app: web.Application,
        *,
        refused: Callable[[str], None],
        bounds: ConnectionBounds | None = None,
        shutdown_timeout: float,
        read_bufsize: int = 2**16,
        tls: TlsContext | None = None,
        handler_cancellation: bool = False,
    ) -> None:
        app.middlewares.append(_close_refused)
        app.middlewares.append(_refuse_encoded(refused))
        super().__init__(
            app,
            access_log=None,
            logger=_RequestErrors(refused),
            shutdown_timeout=shutdown_timeout,
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
            read_bufsize=read_bufsize,
            handler_cancellation=handler_cancellation,
            auto_decompress=False,
            lingering_time=0.0,  # what follows a refused request's header is not read
        )
        self._limiter = _ConnectionLimiter(bounds or ConnectionBounds(), refused, tls)

    @property
    def server(self) -> Any:
        """The factory of connections, for a site."""
        server = super().server
        return None if server is None else lambda: _Connection(self._limiter, server())


class _RequestErrors(logging.LoggerAdapter[logging.Logger]):
    """Counts what is no HTTP, and logs it in one line; aiohttp would log where it raised."""

    def __init__(self, refused: Callable[[str], None]) -> None:
        super().__init__(logging.getLogger("aiohttp.server"))
        self._refused = refused

    def debug(self, msg: object, *args: object, **options: Any) -> None:
        if not self._is_the_clients(*args, **options):
            super().debug(msg, *args, **options)

    def exception(self, msg: object, *args: object, **options: Any) -> None:
        if not self._is_the_clients(*args, **options):
            super().exception(msg, *args, **options)

    def _is_the_clients(self, *args: object, exc_info: Any = None, **_: Any) -> bool:
        # It left in the middle of its request, or sent what is no TLS there.
        if isinstance(exc_info, ConnectionError | ssl.SSLError):
            return True
        if not isinstance(exc_info, HttpProcessingError):
            return False
        self._refused("malformed_request")
        problem = " ".join(exc_info.message.split())
        log.info("refused what is no request, of %s: %.200s", args[0], problem, extra=REPEATED)
        return True


@web.middleware
async def _close_refused(request: web.Request, handler: Any) -> web.StreamResponse:
    try:
        response: web.StreamResponse = await handler(request)
    except web.HTTPException as refusal:
        refusal.force_close()
        raise
    if response.status in {401, 403, 404} and not response.prepared:
        response.force_close()
    return response


def _refuse_encoded(refused: Callable[[str], None]) -> Any:
    @web.middleware
    async def refuse(request: web.Request, handler: Any) -> web.StreamResponse:
        if request.headers.get("Content-Encoding", "identity").lower() == "identity":
            response: web.StreamResponse = await handler(request)
            return response
        refused("encoded_body")
        problem = "send the body as it is, without Content-Encoding"
        refusal = web.json_response({"error": problem}, status=415)
        refusal.force_close()
        return refusal

    return refuse


class _ConnectionLimiter:
    """The connections of one listener."""

    def __init__(
        self, bounds: ConnectionBounds, refused: Callable[[str], None], tls: TlsContext | None
    ) -> None:
        self.bounds, self.refused, self.tls = bounds, refused, tls
        self.patience = SilenceBound(bounds.header_seconds, heartbeat=0.0)
        self.handshakes: set[asyncio.Task[None]] = set()
        self._waiting: dict[_Connection, str] = {}  # and its peer, in the order of their arrival
        self._waiting_of: Counter[str] = Counter()
        self._open: Counter[str] = Counter()
        self._most = file_limit() // 6  # trainer rank 0 has four listeners, and other files

    def enter(self, connection: "_Connection", peer: str) -> bool:
        """Let a connection in, and close the one that waited longest if there are too many."""
        if self._open[peer] >= self.bounds.open_of_peer or self._open.total() >= self._most:
            return False
        self._open[peer] += 1
        self._waiting[connection] = peer
        self._waiting_of[peer] += 1
        if self._waiting_of[peer] > self.bounds.waiting_of_peer:
            oldest = next(c for c, other in self._waiting.items() if other == peer)
            oldest.refuse("slow_header")
        elif len(self._waiting) > self.bounds.waiting:
            next(iter(self._waiting)).refuse("slow_header")
        return True

    def header_read(self, connection: "_Connection") -> None:
        """A connection waits no longer."""
        peer = self._waiting.pop(connection, None)
        if peer is not None:
            _count_down(self._waiting_of, peer)

    def leave(self, connection: "_Connection", peer: str) -> None:
        """A connection that was let in has ended."""
        self.header_read(connection)
        _count_down(self._open, peer)


def _count_down(counter: Counter[str], key: str) -> None:
    counter[key] -= 1
    if counter[key] <= 0:
        del counter[key]


class _Connection(asyncio.Protocol):
    """Passes every call on to `inner`, aiohttp's protocol, once the limiter has let it in."""

    def __init__(self, limiter: _ConnectionLimiter, inner: asyncio.Protocol) -> None:
        self._limiter, self._inner = limiter, inner
        self._header: bytearray | None = bytearray()
        self._transport: asyncio.Transport | None = None
        self._peer = ""
        self._entered = self._connected = self._refused = self._shaking_hands = False
        self._timer: asyncio.TimerHandle | None = None
        self._reader_timer: asyncio.TimerHandle | None = None

    def refuse(self, what: str) -> None:
        """Count, and drop the connection."""
        if self._refused:
            return
        self._refused = True
        self._limiter.refused(what)
        self._limiter.header_read(self)
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._peer = str((transport.get_extra_info("peername") or ("",))[0])
        if not self._limiter.enter(self, self._peer):
            self.refuse("too_many_connections")
            return
        self._entered = True
        self._wait(asyncio.get_running_loop().time(), self._limiter.bounds.header_seconds)
        self._watch_reader(self._transport)
        if self._limiter.tls is None:
            self._connect(self._transport)

    def _wait(self, since: float, seconds: float) -> None:
        """Wait `seconds` from now for the header of a connection that was made at `since`."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self._overdue, since, loop.time() + seconds)

    def _overdue(self, since: float, due: float) -> None:
        """Drop the connection, unless this process is so late that it may have longer."""
        now, patience = asyncio.get_running_loop().time(), self._limiter.patience
        patience.late(TURNS * (now - due), now)
        left = since + patience.seconds(now) - now
        if left > 0:
            self._wait(since, left)
        else:
            self.refuse("slow_header")

    def _begin_tls(self, raw: asyncio.Transport, context: ssl.SSLContext, greeting: bytes) -> None:
        """The client has sent its first bytes; one that says nothing costs no memory for TLS."""
        self._shaking_hands = True
        raw.pause_reading()
        longest = STRETCH_LIMIT * self._limiter.bounds.header_seconds
        loop = asyncio.get_running_loop()
        starting = loop.start_tls(
            raw,
            self,
            context,
            server_side=True,
            ssl_handshake_timeout=longest,  # `_overdue` ends it before
            ssl_shutdown_timeout=FAREWELL_SECONDS,
        )
        handshake = loop.create_task(self._shake_hands(starting))
        self._limiter.handshakes.add(handshake)
        handshake.add_done_callback(self._limiter.handshakes.discard)
        loop.call_soon(_pass_on, raw, greeting)  # once start_tls has begun

    async def _shake_hands(self, starting: Awaitable[asyncio.Transport | None]) -> None:
        try:
            secured = await starting
        except OSError:  # also TimeoutError, and what is no TLS
            secured = None
        if secured is not None:
            self._connect(secured)
        else:  # asyncio calls connection_lost for some of these and not for others
            self.refuse("tls_handshake")
            self.connection_lost(None)

    def _connect(self, transport: asyncio.Transport) -> None:
        self._transport, self._connected = transport, True
        transport.set_write_buffer_limits(high=UNREAD_BYTES)  # TLS would have 512 KiB
        self._inner.connection_made(transport)
        if self._header:
            self._pass_header(self._header)

    def data_received(self, data: bytes) -> None:
        if self._header is None:
            self._inner.data_received(data)
        elif self._connected or self._shaking_hands:
            self._header += data
            self._pass_header(self._header)
        elif self._transport is not None and self._limiter.tls is not None:
            self._begin_tls(self._transport, self._limiter.tls(), data)

    def _pass_header(self, header: bytearray) -> None:
        """Pass the header on once it is whole, with what has come of the body."""
        if not self._connected:  # the handshake has just ended
            return
        end = header.find(_HEADER_END)
        if 0 <= end <= MAX_HEADER_BYTES:
            self._header = None
            self._end_wait()
            self._inner.data_received(bytes(header))
        elif len(header) > MAX_HEADER_BYTES:
            self.refuse("long_header")

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._connected else None

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def _watch_reader(self, raw: asyncio.Transport, before: int | None = None) -> None:
        """`before`: bytes that the client had taken at the last look; None: nothing waited then."""
        taken = _taken(raw) if raw.get_write_buffer_size() else None
        if before is not None and taken is not None and taken - before < LEAST_READ_BYTES:
            self.refuse("slow_reader")
            return
        loop, seconds = asyncio.get_running_loop(), self._limiter.bounds.unread_seconds
        self._reader_timer = loop.call_later(seconds, self._watch_reader, raw, taken)

    def connection_lost(self, exc: Exception | None) -> None:
        entered, self._entered = self._entered, False
        connected, self._connected = self._connected, False
        if self._reader_timer is not None:
            self._reader_timer.cancel()
        if entered:
            self._end_wait()
            self._limiter.leave(self, self._peer)
        if connected:
            self._inner.connection_lost(exc)

    def _end_wait(self) -> None:
        self._limiter.header_read(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _taken(raw: asyncio.Transport) -> int:
    """Bytes that the client's kernel has confirmed; it takes no more than the client reads."""
    information = raw.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128)
    return int.from_bytes(information[_BYTES_ACKED : _BYTES_ACKED + 8], sys.byteorder)


def _pass_on(raw: asyncio.Transport, data: bytes) -> None:
    """Give bytes that were read from `raw` to the protocol that it has by now, which is TLS's."""
    protocol = raw.get_protocol()
    if not isinstance(protocol, asyncio.BufferedProtocol):
        return  # the connection has ended
    rest = memoryview(data)
    while rest:
        buffer = memoryview(protocol.get_buffer(len(rest)))
        length = min(len(buffer), len(rest))
        buffer[:length] = rest[:length]
        protocol.buffer_updated(length)
        rest = rest[length:]
