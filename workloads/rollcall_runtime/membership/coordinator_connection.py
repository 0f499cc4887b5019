"""The member's side of the stream to the coordinator, reopened until it is closed."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import urlsplit

import aiohttp

from rollcall_protocol.job_config import MembershipConfig
from rollcall_protocol.membership.stretched_bounds import SilenceBound, StretchedBound
from rollcall_protocol.wire.json_codec import CodecError
from rollcall_protocol.wire.messages import (
    COORDINATOR_MESSAGES,
    CoordinatorMessage,
    Hello,
    MemberMessage,
    ReconnectRequest,
    dumps,
)
from rollcall_runtime.membership.liveness import LivenessMonitor, SilentError
from rollcall_runtime.membership.long_messages import load_message
from rollcall_runtime.membership.refused_token import RefusalPatience
from rollcall_runtime.worker.asyncio_helpers import first_of
from rollcall_runtime.worker.backoff import BackoffDelays
from rollcall_runtime.worker.http_client import plain_session
from rollcall_runtime.worker.identity.own_tokens import TokenSource, bearer
from rollcall_runtime.worker.identity.tls import TlsContext
from rollcall_runtime.worker.name_look_ups import NameLookUps

log = logging.getLogger(__name__)

PATIENCE = 2  # times suspect_after: leaving a coordinator that is only busy costs a session
OPEN_SECONDS = 5.0  # on an idle machine
CLOSE_SECONDS = 1.0
FIRST_DELAY, LONGEST_DELAY = 0.1, 2.0  # seconds between attempts
LOOK_UP_SECONDS = 1.0  # for the coordinator's name; and how long what was found holds
MAX_MESSAGE_BYTES = 64 * 2**20  # a manifest names every tensor


class MemberStream:
    """One WebSocket at a time. Messages sent without one are dropped: `hello` has the whole state.

    `opened` is called after each Hello, `received` with each message, both in the event loop. A
    ping is sent every `bounds.heartbeat` seconds. The stream is lost when no bytes, not even
    answers to the pings, arrive for PATIENCE times `bounds.suspect_after`, on a busy machine for
    longer (`SilenceBound`). Each attempt to open one that took too long gives the next one longer.
    `names` looks the coordinator's name up; `tls` is for an https `url`.
    """

    def __init__(
        self,
        *,
        url: str,
        token: TokenSource,
        hello: Callable[[], Hello],
        opened: Callable[[], None],
        received: Callable[[CoordinatorMessage], None],
        bounds: MembershipConfig,
        names: NameLookUps | None = None,
        tls: TlsContext | None = None,
    ) -> None:
        self._url, self._token, self._tls = url, token, tls
        self._hello, self._opened, self._received = hello, opened, received
        self._bounds = bounds
        self._silence = SilenceBound(PATIENCE * bounds.suspect_after, heartbeat=bounds.heartbeat)
        self._opening = StretchedBound(min(OPEN_SECONDS, bounds.suspect_after))
        self._silent = ("", 0.0)  # whose silence ended the stream before, since when
        self._attempt: asyncio.Timeout | None = None
        self._attempted: frozenset[str] = frozenset()  # addresses of an attempt that takes long
        self._outbox: asyncio.Queue[str | None] | None = None
        self._peer = ""
        self._names = names or NameLookUps()
        self._addresses: frozenset[str] = frozenset()
        self._looked_up = -LOOK_UP_SECONDS
        self._moved = False  # the coordinator is another pod than the open stream's
        self._closing = False
        self._wake = asyncio.Event()

    @property
    def connected(self) -> bool:
        """Whether a stream is open."""
        return self._outbox is not None

    def send(self, message: MemberMessage) -> None:
        """Queue a message on the open stream; dropped without one."""
        if self._outbox is not None:
            self._outbox.put_nowait(dumps(message))

    def close(self) -> None:
        """End the stream after the queued messages; `run` then returns."""
        self._closing = True
        self._wake.set()
        if self._outbox is not None:
            self._outbox.put_nowait(None)

    async def reconnect(self, request: ReconnectRequest) -> bool:
        """Handle a request, of whomever, to open a stream to the coordinator.

        True if this member does so. An open stream is left only if the coordinator's name leads
        elsewhere by now. So the worst that anyone can cause is one attempt to connect, or one
        look-up of the name, each LOOK_UP_SECONDS.
        """
        now = time.monotonic()
        if now - self._looked_up >= LOOK_UP_SECONDS:
            self._looked_up = now
            self._addresses = await self._look_up()
        elif not self.connected:
            return False
        if self.connected and (not self._addresses or self._peer in self._addresses):
            return False
        log.warning(
            "%s at %s asks for a stream to the coordinator; connected to %s",
            request.pod_uid,
            request.address,
            self._peer or "no coordinator",
        )
        self._moved = self.connected
        self._wake.set()
        leads_elsewhere = self._addresses and self._attempted.isdisjoint(self._addresses)
        if self._attempt is not None and self._attempted and leads_elsewhere:
            self._attempt.reschedule(asyncio.get_running_loop().time())
        return True

    async def _look_up(self) -> frozenset[str]:
        """The coordinator's addresses; none if its name is not known now."""
        parts = urlsplit(self._url)
        try:
            async with asyncio.timeout(LOOK_UP_SECONDS):
                return await self._names.addresses(parts.hostname or "")
        except (OSError, TimeoutError) as error:
            log.info("cannot look up %s: %s", parts.hostname, str(error) or "no answer")
            return frozenset()

    async def run(self) -> None:
        """Keep a stream open until `close`.

        CredentialsRefusedError if the token, which each attempt reads anew, is refused for long.
        """
        patience = RefusalPatience(self._url)
        attempts = BackoffDelays(first=FIRST_DELAY, longest=LONGEST_DELAY)
        streams = BackoffDelays(first=FIRST_DELAY, longest=LONGEST_DELAY)
        async with plain_session(
            connector=self._names.connector(),
            timeout=aiohttp.ClientTimeout(total=None),
            ws_response_class=_Socket,
        ) as session:
            while not self._closing:
                try:
                    opened = await self._open(session)
                except (aiohttp.ClientError, TimeoutError, OSError) as error:
                    log.info("no stream to the coordinator: %s: %s", type(error).__name__, error)
                    if getattr(error, "status", None) in {401, 403}:
                        patience.refused(str(error))
                    await self._wait(attempts)
                else:
                    attempts.reset()
                    patience.accepted()
                    began = time.monotonic()
                    await self._use(cast("_Socket", opened))
                    if time.monotonic() - began > LONGEST_DELAY:  # else the peer refused it
                        streams.reset()
                    await self._wait(streams)

    async def _open(self, session: aiohttp.ClientSession) -> aiohttp.ClientWebSocketResponse:
        """One attempt. TimeoutError, after which the next one has longer."""
        if self._opening.stretch > 1:
            self._attempted = await self._look_up()
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._opening.seconds) as self._attempt:
                opened = await session.ws_connect(
                    self._url,
                    max_msg_size=MAX_MESSAGE_BYTES,
                    headers=bearer(self._token()),
                    ssl=self._tls() if self._tls else True,
                )
        except TimeoutError:
            self._opening.passed()
            raise
        finally:
            self._attempt, self._attempted = None, frozenset()
        self._opening.took(time.monotonic() - began)
        return opened

    async def _wait(self, backoff: BackoffDelays) -> None:
        """Wait before the next attempt, or until `reconnect` or `close` is called."""
        try:
            async with asyncio.timeout(backoff.next_delay()):
                await self._wake.wait()
        except TimeoutError:
            return
        backoff.reset()
        if not self._closing:
            self._wake.clear()

    async def _use(self, socket: "_Socket") -> None:
        """Exchange messages until either side ends the stream."""
        liveness = LivenessMonitor(socket.transport, self._silence)
        self._peer = socket.transport.get_extra_info("peername", ("",))[0]
        self._count_silence()
        self._moved = False
        self._outbox = outbox = asyncio.Queue[str | None]()
        self.send(self._hello())
        log.info("stream to the coordinator is open")
        self._opened()
        try:
            await first_of(
                self._write(socket, outbox),
                self._read(socket),
                self._ping(socket),
                liveness.watch(),
                self._wait_for_request(),
            )
            reason = "ended by the coordinator"
        except SilentError as error:
            liveness.abort()
            self._silent = self._peer, liveness.last_received_at
            reason = str(error)
        except (aiohttp.ClientError, OSError) as error:
            reason = f"{type(error).__name__}: {error}"
        finally:
            self._outbox, self._peer = None, ""
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await socket.close()
        if not self._closing:
            log.warning(
                "stream to the coordinator lost: %s (close code %s)", reason, socket.close_code
            )

    def _count_silence(self) -> None:
        """Count the silence for which the stream before was lost, if its peer is the same."""
        (peer, since), self._silent = self._silent, ("", 0.0)
        if peer and peer == self._peer:
            now = time.monotonic()
            self._silence.silent(now - since, now)

    async def _write(
        self, socket: aiohttp.ClientWebSocketResponse, outbox: asyncio.Queue[str | None]
    ) -> None:
        while (text := await outbox.get()) is not None:
            await socket.send_str(text)

    async def _ping(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            await asyncio.sleep(self._bounds.heartbeat)
            await socket.ping()

    async def _wait_for_request(self) -> None:
        while True:
            await self._wake.wait()
            if self._closing:
                await asyncio.Event().wait()  # the writer ends the stream after the queued messages
            if self._moved:
                return
            self._wake.clear()  # the request came while this stream was being opened

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for frame in socket:
            if frame.type is aiohttp.WSMsgType.TEXT:
                try:
                    message = await load_message(frame.data, COORDINATOR_MESSAGES)
                except CodecError as error:
                    raise ConnectionResetError(f"malformed message: {error}") from error
                self._received(message)


class _Socket(aiohttp.ClientWebSocketResponse):
    """A client WebSocket that exposes its transport."""

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
