"""The member's side of the stream to the coordinator: opened again for ever, until closed."""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from typing import Any, cast

import aiohttp

from rollcall_protocol.job_config import MembershipConfig
from rollcall_protocol.wire.json_codec import CodecError
from rollcall_protocol.wire.messages import (
    COORDINATOR_MESSAGES,
    CoordinatorMessage,
    Hello,
    MemberMessage,
    ReconnectRequest,
    dumps,
)
from rollcall_runtime.membership.credentials import CredentialsRefusedError, bearer
from rollcall_runtime.membership.liveness import LivenessMonitor, SilentError
from rollcall_runtime.membership.wire import read
from rollcall_runtime.worker.concurrency import first_of

log = logging.getLogger(__name__)

PATIENCE = 2  # bounds: to leave a coordinator that is only busy costs a session, and gains nothing
OPEN_SECONDS = 5.0
CLOSE_SECONDS = 1.0
FIRST_DELAY, LONGEST_DELAY = 0.1, 2.0
MAX_MESSAGE_BYTES = 64 * 2**20  # a manifest names every tensor


class MemberStream:
    """One WebSocket at a time. Messages sent while there is none are dropped: the coordinator has
    written off what they would have said, and `hello` tells where this member stands.

    `opened` is called after each Hello, `heard` with each message, both in the event loop. A ping
    goes out every `bounds.heartbeat`; the stream is lost when nothing, not even the answers to
    these, was heard for PATIENCE times `bounds.suspect_after`.
    """

    def __init__(
        self,
        *,
        url: str,
        token: str,
        hello: Callable[[], Hello],
        opened: Callable[[], None],
        heard: Callable[[CoordinatorMessage], None],
        bounds: MembershipConfig,
    ) -> None:
        self._url, self._token = url, token
        self._hello, self._opened, self._heard = hello, opened, heard
        self._bounds = bounds
        self._outbox: asyncio.Queue[str | None] | None = None
        self._peer = self._caller = ""
        self._closing = False
        self._poked = asyncio.Event()

    @property
    def connected(self) -> bool:
        """Whether a stream is open."""
        return self._outbox is not None

    def send(self, message: MemberMessage) -> None:
        """Queue a message on the stream that is open, if one is."""
        if self._outbox is not None:
            self._outbox.put_nowait(dumps(message))

    def close(self) -> None:
        """End the stream after what is queued; `run` returns then, and opens none any more."""
        self._closing = True
        self._poked.set()
        if self._outbox is not None:
            self._outbox.put_nowait(None)

    def register(self, summons: ReconnectRequest) -> bool:
        """A coordinator misses us: open another stream, by its name.

        False if the stream that is open leads to it.
        """
        if self.connected and self._peer == summons.address:
            return False
        caller, peer = f"{summons.pod_uid} at {summons.address}", self._peer or "nobody"
        self._caller = summons.address
        log.warning("called by coordinator %s, while connected to %s", caller, peer)
        self._poked.set()
        return True

    async def run(self) -> None:
        """Keep a stream open until `close`. CredentialsRefusedError when the token is not taken."""
        reaching = returning = FIRST_DELAY  # before another attempt, before another stream
        opening = min(OPEN_SECONDS, self._bounds.suspect_after)
        async with aiohttp.ClientSession(
            # The name leads to another pod when rank 0 was replaced.
            connector=aiohttp.TCPConnector(use_dns_cache=False),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=opening),
            headers=bearer(self._token),
            ws_response_class=_Socket,
        ) as session:
            while not self._closing:
                try:
                    async with asyncio.timeout(opening):
                        socket = await session.ws_connect(self._url, max_msg_size=MAX_MESSAGE_BYTES)
                except (aiohttp.ClientError, TimeoutError, OSError) as error:
                    if getattr(error, "status", None) in {401, 403}:
                        raise CredentialsRefusedError(self._url) from error
                    log.info("no stream to the coordinator: %s: %s", type(error).__name__, error)
                    reaching = await self._rest(reaching)
                else:
                    reaching, began = FIRST_DELAY, time.monotonic()
                    await self._use(cast("_Socket", socket))
                    if time.monotonic() - began > LONGEST_DELAY:  # else it was not wanted
                        returning = FIRST_DELAY
                    returning = await self._rest(returning)

    async def _rest(self, delay: float) -> float:
        """Wait before the next attempt, unless somebody wants it now; returns the next delay."""
        try:
            async with asyncio.timeout(delay * random.uniform(0.5, 1.0)):  # noqa: S311
                await self._poked.wait()
        except TimeoutError:
            return min(LONGEST_DELAY, delay * 2)
        if not self._closing:
            self._poked.clear()
        return FIRST_DELAY

    async def _use(self, socket: "_Socket") -> None:
        """Speak until either side ends the stream."""
        liveness = LivenessMonitor(
            socket.transport, suspect_after=PATIENCE * self._bounds.suspect_after
        )
        self._peer = socket.transport.get_extra_info("peername", ("",))[0]
        self._outbox = outbox = asyncio.Queue[str | None]()
        self.send(self._hello())
        log.info("stream to the coordinator is open")
        self._opened()
        try:
            await first_of(
                self._write(socket, outbox),
                self._read(socket),
                self._beat(socket),
                liveness.watch(),
                self._called(),
            )
            why = "ended by the peer"
        except SilentError as error:
            liveness.abort()
            why = str(error)
        except (aiohttp.ClientError, OSError) as error:
            why = f"{type(error).__name__}: {error}"
        finally:
            self._outbox, self._peer = None, ""
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await socket.close()
        if not self._closing:
            log.warning("stream lost: %s (close code %s)", why, socket.close_code)

    async def _write(
        self, socket: aiohttp.ClientWebSocketResponse, outbox: asyncio.Queue[str | None]
    ) -> None:
        while (text := await outbox.get()) is not None:
            await socket.send_str(text)

    async def _beat(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            await asyncio.sleep(self._bounds.heartbeat)
            await socket.ping()

    async def _called(self) -> None:
        while True:
            await self._poked.wait()
            if self._closing:
                await asyncio.Event().wait()  # the writer ends the stream after what is queued
            if self._caller != self._peer:
                return
            self._poked.clear()  # it called while this stream was being opened

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for frame in socket:
            if frame.type is aiohttp.WSMsgType.TEXT:
                try:
                    message = await read(frame.data, COORDINATOR_MESSAGES)
                except CodecError as error:
                    raise ConnectionResetError(f"malformed message: {error}") from error
                self._heard(message)


class _Socket(aiohttp.ClientWebSocketResponse):
    """One that tells its transport."""

    def __init__(
        self,
        reader: Any,
        writer: Any,
        protocol: str | None,
        response: aiohttp.ClientResponse,
        *arguments: Any,
        **options: Any,
    ) -> None:
        super().__init__(reader, writer, protocol, response, *arguments, **options)
        connection = response.connection
        if connection is None or connection.transport is None:
            raise aiohttp.ClientConnectionError("the connection ended while it was opened")
        self.transport = connection.transport
