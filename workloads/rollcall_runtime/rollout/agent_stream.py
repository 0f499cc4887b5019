"""The member's side of the stream to the coordinator: opened again for ever, until closed."""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable

import aiohttp

from rollcall_protocol.codec import CodecError
from rollcall_protocol.messages import (
    COORDINATOR_MESSAGES,
    CoordinatorMessage,
    Hello,
    MemberMessage,
    dumps,
    loads,
)
from rollcall_runtime.concurrency import first_of
from rollcall_runtime.rollout.credentials import CredentialsRefusedError, bearer

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 2.0  # a ping this often; the stream is lost without a pong within half of it
OPEN_SECONDS = 5.0
CLOSE_SECONDS = 1.0
FIRST_DELAY, LONGEST_DELAY = 0.1, 2.0
MAX_MESSAGE_BYTES = 64 * 2**20  # a manifest names every tensor


class MemberStream:
    """One WebSocket at a time. Messages sent while there is none are dropped: the coordinator has
    written off what they would have said, and `hello` tells where this member stands.

    `opened` is called after each Hello, `heard` with each message, both in the event loop.
    """

    def __init__(
        self, *, url: str, token: str, hello: Callable[[], Hello], opened: Callable[[], None],
        heard: Callable[[CoordinatorMessage], None],
    ) -> None:  # fmt: skip
        self._url, self._token = url, token
        self._hello, self._opened, self._heard = hello, opened, heard
        self._outbox: asyncio.Queue[str | None] | None = None
        self._closing = asyncio.Event()

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
        self._closing.set()
        if self._outbox is not None:
            self._outbox.put_nowait(None)

    async def run(self) -> None:
        """Keep a stream open until `close`. CredentialsRefusedError when the token is not taken."""
        delay = FIRST_DELAY
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=OPEN_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout, headers=bearer(self._token)) as session:
            while not self._closing.is_set():
                try:
                    async with asyncio.timeout(OPEN_SECONDS):
                        socket = await session.ws_connect(
                            self._url, heartbeat=HEARTBEAT_SECONDS, max_msg_size=MAX_MESSAGE_BYTES
                        )
                except (aiohttp.ClientError, TimeoutError, OSError) as error:
                    if getattr(error, "status", None) in {401, 403}:
                        raise CredentialsRefusedError(self._url) from error
                    log.info("no stream to the coordinator: %s: %s", type(error).__name__, error)
                else:
                    began = time.monotonic()
                    await self._use(socket)
                    if time.monotonic() - began > LONGEST_DELAY:  # else it was not wanted
                        delay = FIRST_DELAY
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(delay * random.uniform(0.5, 1.0)):  # noqa: S311
                        await self._closing.wait()
                delay = min(LONGEST_DELAY, delay * 2)

    async def _use(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Speak until either side ends the stream."""
        self._outbox = outbox = asyncio.Queue[str | None]()
        self.send(self._hello())
        log.info("stream to the coordinator is open")
        self._opened()
        try:
            await first_of(self._write(socket, outbox), self._read(socket))
            why = "ended by the peer"
        except (aiohttp.ClientError, OSError) as error:
            why = f"{type(error).__name__}: {error}"
        finally:
            self._outbox = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await socket.close()
        if not self._closing.is_set():
            log.warning("stream lost: %s (close code %s)", why, socket.close_code)

    async def _write(
        self, socket: aiohttp.ClientWebSocketResponse, outbox: asyncio.Queue[str | None]
    ) -> None:
        while (text := await outbox.get()) is not None:
            await socket.send_str(text)

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for frame in socket:
            if frame.type is aiohttp.WSMsgType.TEXT:
                try:
                    message = loads(frame.data, COORDINATOR_MESSAGES)
                except CodecError as error:
                    raise ConnectionResetError(f"malformed message: {error}") from error
                self._heard(message)
