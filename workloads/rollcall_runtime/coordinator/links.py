"""Members' streams: one WebSocket each, opened by the member, closed by whoever loses faith."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Protocol

from aiohttp import WSMsgType, web

from rollcall_protocol.codec import CodecError
from rollcall_protocol.ids import MemberId
from rollcall_protocol.messages import (
    MEMBER_MESSAGES,
    CoordinatorMessage,
    Hello,
    MemberMessage,
    dumps,
    loads,
)

log = logging.getLogger(__name__)

HELLO_SECONDS = 5.0
HEARTBEAT_SECONDS = 4.0  # a ping this often; a pong within half of it
CLOSE_SECONDS = 1.0
MAX_MESSAGE_BYTES = 16 * 2**20


class Listener(Protocol):
    """What a stream's events mean; implemented by the coordinator."""

    def member_joined(self, hello: Hello) -> None:
        """A stream opened and said who it is."""

    def member_left(self, member: MemberId, reason: str) -> None:
        """Its stream ended, for whatever reason."""

    def member_said(self, member: MemberId, message: MemberMessage) -> None:
        """A message arrived."""


class Link:
    """One open stream. Sending never waits; a writer task keeps the order."""

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self._socket = socket
        self._queue: asyncio.Queue[str | None] = asyncio.Queue()
        self._reason = ""

    def send(self, message: CoordinatorMessage) -> None:
        """Queue a message."""
        self._queue.put_nowait(dumps(message))

    def close(self, reason: str) -> None:
        """End the stream after what is queued."""
        self._reason = self._reason or reason
        self._queue.put_nowait(None)

    async def write(self) -> None:
        """Send what is queued until the stream ends."""
        while (text := await self._queue.get()) is not None:
            await self._socket.send_str(text)
        with contextlib.suppress(asyncio.TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._socket.close(message=self._reason.encode()[:120])
        raise ConnectionResetError(self._reason)


class Links:
    """All open streams by member; a pod that connects again replaces its older stream."""

    def __init__(self, listener: Listener, refused: Callable[[str], None]) -> None:
        self._listener = listener
        self._refused = refused
        self._links: dict[MemberId, Link] = {}

    def send(self, member: MemberId, message: CoordinatorMessage) -> None:
        """Send to a member that may have gone: its loss is reported by its stream."""
        if member in self._links:
            self._links[member].send(message)

    def close(self, member: MemberId, reason: str) -> None:
        """Close a member's stream."""
        if member in self._links:
            self._links[member].close(reason)

    def close_all(self, reason: str) -> None:
        """Close every stream."""
        for link in self._links.values():
            link.close(reason)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Handle one stream from its Hello to its end."""
        socket = web.WebSocketResponse(heartbeat=HEARTBEAT_SECONDS, max_msg_size=MAX_MESSAGE_BYTES)
        await socket.prepare(request)
        try:
            text = await socket.receive_str(timeout=HELLO_SECONDS)
            hello = loads(text, Hello)
        except (CodecError, TypeError, TimeoutError) as error:
            self._refused("malformed")
            await socket.close(message=f"Hello expected: {error}".encode()[:120])
            return socket
        member, link = hello.member, Link(socket)
        if member in self._links:
            self._links[member].close("the member opened another stream")
        self._links[member] = link
        self._listener.member_joined(hello)
        reason = "closed by the member"
        writer = asyncio.create_task(link.write())
        reader = asyncio.create_task(self._read(member, socket))
        try:
            done, _ = await asyncio.wait({writer, reader}, return_when=asyncio.FIRST_COMPLETED)
            reason = next((str(e) for t in done if (e := t.exception())), reason) or reason
        finally:
            for task in (writer, reader):
                task.cancel()
            await asyncio.gather(writer, reader, return_exceptions=True)
            if self._links.get(member) is link:
                del self._links[member]
                self._listener.member_left(member, reason)
        return socket

    async def _read(self, member: MemberId, socket: web.WebSocketResponse) -> None:
        async for frame in socket:
            if frame.type is not WSMsgType.TEXT:
                continue
            try:
                message = loads(frame.data, MEMBER_MESSAGES)
            except CodecError as error:
                self._refused("malformed")
                raise ConnectionResetError(f"malformed message: {error}") from error
            self._listener.member_said(member, message)
        if socket.exception() is not None:
            raise ConnectionResetError(f"stream failed: {socket.exception()}")
        if socket.close_code is not None and socket.close_code >= 1006:
            raise ConnectionResetError("connection lost or heartbeat missed")
