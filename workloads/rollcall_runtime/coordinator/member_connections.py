"""The coordinator's side of the members' streams: one WebSocket each, opened by the member."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from aiohttp import WSMsgType, web

from rollcall_protocol.membership.bad_messages import MESSAGES_PER_SECOND, message_allowance
from rollcall_protocol.membership.message_check import BadMessage, MessageFault
from rollcall_protocol.membership.stretched_bounds import DELAY_MEMORY, SilenceBound
from rollcall_protocol.wire.ids import MemberId
from rollcall_protocol.wire.job_snapshot import SuspicionCause
from rollcall_protocol.wire.json_codec import CodecError
from rollcall_protocol.wire.messages import (
    MEMBER_MESSAGES,
    CoordinatorMessage,
    Hello,
    MemberMessage,
    loads,
)
from rollcall_protocol.wire.printable_text import one_line
from rollcall_runtime.membership.liveness import LivenessMonitor, SilentError
from rollcall_runtime.membership.long_messages import dump_message, load_message
from rollcall_runtime.worker.asyncio_helpers import first_of
from rollcall_runtime.worker.auth import Caller, current_caller
from rollcall_runtime.worker.identity.roles import CallerRole
from rollcall_runtime.worker.identity.token_verifier import TokenRefusal
from rollcall_runtime.worker.log_rate import REPEATED

log = logging.getLogger(__name__)

HELLO_SECONDS = 5.0
CLOSE_SECONDS = 1.0
MAX_MESSAGE_BYTES = 16 * 2**20
MAX_UNREAD = 32 * 2**20  # characters that wait for a member to read, if the job says no more


@dataclass(frozen=True, slots=True)
class ConnectionLoss:
    """Why a stream ended."""

    cause: SuspicionCause
    reason: str


class ConnectionListener(Protocol):
    """Receives the events of all streams; implemented by the coordinator."""

    def hello_problem(self, hello: Hello) -> BadMessage | None:
        """Why a member must not register; None if it may."""

    def member_connected(self, hello: Hello) -> None:
        """A stream opened and its Hello arrived."""

    def member_disconnected(self, member: MemberId, loss: ConnectionLoss) -> None:
        """The stream of `member` ended."""

    def refuse(self, member: MemberId, bad: BadMessage) -> None:
        """A message of `member` cannot be read."""

    def member_message(self, member: MemberId, message: MemberMessage) -> None:
        """A message of `member` arrived."""


class MemberConnection:
    """One open stream. Sending never waits; a writer task sends in order.

    A member that leaves more than `max_unread` characters unread loses it; `unread` is called then.
    """

    def __init__(
        self,
        socket: web.WebSocketResponse,
        liveness: LivenessMonitor,
        unread: Callable[[], None],
        max_unread: int,
    ) -> None:
        self._max_unread = max_unread
        self._socket, self.liveness, self._unread = socket, liveness, unread
        self._queue: asyncio.Queue[str | Awaitable[str] | None] = asyncio.Queue()
        self._waiting = 0  # characters; long messages are shared by all members
        self._reason = ""

    def send(self, text: str | Awaitable[str]) -> None:
        """Queue a message (JSON)."""
        if self._waiting > self._max_unread:
            return
        self._queue.put_nowait(text)
        self._waiting += len(text) if isinstance(text, str) else 0
        if self._waiting > self._max_unread:
            self._unread()
            self.liveness.abort()

    def close(self, reason: str) -> None:
        """End the stream after the messages that are queued."""
        self._reason = self._reason or reason
        self._queue.put_nowait(None)

    async def write(self) -> None:
        """Send queued messages until the stream ends."""
        while (text := await self._queue.get()) is not None:
            if isinstance(text, str):
                await self._socket.send_str(text)
                self._waiting -= len(text)
            else:
                await self._socket.send_str(await asyncio.shield(text))
        with contextlib.suppress(asyncio.TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._socket.close(message=_close_message(self._reason))
        raise ConnectionResetError(self._reason)


class MemberConnections:
    """All open streams by member; a member that connects again replaces its older stream.

    Members ping every `heartbeat` seconds and aiohttp answers. A stream on which no bytes arrive
    for `suspect_after` seconds is closed as lost; on a busy machine for longer (`SilenceBound`). A
    member that was lost so and opens a stream again was alive: its silence counts. `processes` is
    the number of ranks in a pod of the trainer. `max_unread`: characters of messages that a member
    may leave unread.
    """

    def __init__(
        self,
        listener: ConnectionListener,
        refused: Callable[[str], None],
        *,
        suspect_after: float,
        heartbeat: float,
        processes: int = 1,
        max_unread: int = MAX_UNREAD,
    ) -> None:
        self._max_unread = max_unread
        self._listener = listener
        self._refused = refused
        self._processes = processes
        self._silence = SilenceBound(suspect_after, heartbeat=heartbeat)
        self._silent_since: dict[MemberId, float] = {}  # lost by silence; time.monotonic
        self._connections: dict[MemberId, MemberConnection] = {}
        self._last: tuple[CoordinatorMessage, str | Awaitable[str]] | None = None

    @property
    def pods(self) -> set[str]:
        """Uids of the pods that have a stream open."""
        return {member.pod_uid for member in self._connections}

    def last_received_at(self, member: MemberId) -> float | None:
        """When bytes last arrived from `member` (time.monotonic); None without a stream."""
        connection = self._connections.get(member)
        return connection.liveness.last_received_at if connection else None

    def send(self, member: MemberId, message: CoordinatorMessage) -> None:
        """Send to a member; without a stream the message is dropped."""
        if member not in self._connections:
            return
        # A message to all members is encoded once: manifests are long.
        if self._last is None or self._last[0] is not message:
            self._last = message, dump_message(message)
        self._connections[member].send(self._last[1])

    def close(self, member: MemberId, reason: str) -> None:
        """Close a member's stream."""
        if member in self._connections:
            self._connections[member].close(reason)

    def close_all(self, reason: str) -> None:
        """Close the streams of all members, with the reason that they get."""
        for connection in self._connections.values():
            connection.close(reason)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Handle one stream from its Hello, in the caller's own name, to its end."""
        socket = web.WebSocketResponse(max_msg_size=MAX_MESSAGE_BYTES, compress=False)
        await socket.prepare(request)
        if request.transport is None:  # the connection was lost meanwhile
            return socket
        liveness = LivenessMonitor(request.transport, self._silence)
        try:
            patience = max(HELLO_SECONDS, self._silence.seconds(time.monotonic()))
            text = await socket.receive_str(timeout=patience)
            hello = loads(text, Hello)
        except (CodecError, TypeError, TimeoutError) as error:
            self._refused("malformed")
            await socket.close(message=_close_message(f"Hello expected: {error}"))
            return socket
        except OSError:  # the connection was lost before
            return socket
        problem = false_name(hello, current_caller(), processes=self._processes)
        if problem:
            self._refused(TokenRefusal.IMPERSONATED.value)
            log.warning("refused a stream: %.500s", one_line(problem))
            await socket.close(message=_close_message(problem))
            return socket
        bad = self._listener.hello_problem(hello)
        if bad is not None:
            self._refused(bad.fault.value)
            log.warning("pod %.253s may not register: %s", hello.pod, bad.problem, extra=REPEATED)
            await socket.close(message=_close_message(bad.problem))
            return socket
        member = hello.member
        connection = MemberConnection(
            socket,
            liveness,
            lambda: self._refused(MessageFault.UNREAD.value),
            self._max_unread,
        )
        if member in self._connections:
            self._connections[member].close("the member opened another stream")
        self._connections[member] = connection
        self._count_silence(member)
        self._listener.member_connected(hello)
        loss = ConnectionLoss(SuspicionCause.CONNECTION_LOST, "the coordinator stops")
        try:
            await first_of(connection.write(), self._read(member, socket), liveness.watch())
            loss = ConnectionLoss(SuspicionCause.CONNECTION_LOST, "closed by the member")
        except SilentError as error:
            liveness.abort()
            self._silent_since[member] = liveness.last_received_at
            loss = ConnectionLoss(SuspicionCause.HEARTBEAT_MISSED, str(error))
        except OSError as error:
            loss = ConnectionLoss(
                SuspicionCause.CONNECTION_LOST, str(error) or type(error).__name__
            )
        finally:
            if self._connections.get(member) is connection:
                self._listener.member_disconnected(member, loss)
                del self._connections[member]
        return socket

    def _count_silence(self, member: MemberId) -> None:
        """Count the silence for which this process of a member was lost; forget what is old."""
        now = time.monotonic()
        since = self._silent_since.pop(member, None)
        if since is not None:
            self._silence.silent(now - since, now)
        self._silent_since = {
            other: since
            for other, since in self._silent_since.items()
            if now - since < DELAY_MEMORY
        }

    async def _read(self, member: MemberId, socket: web.WebSocketResponse) -> None:
        rate = message_allowance(time.monotonic())
        async for frame in socket:
            if frame.type is not WSMsgType.TEXT:
                continue
            if not rate.take(time.monotonic()):
                flood = f"more than {MESSAGES_PER_SECOND:g} messages a second"
                self._listener.refuse(member, BadMessage(MessageFault.FLOOD, flood))
                continue
            try:
                message = await load_message(frame.data, MEMBER_MESSAGES)
            except CodecError as error:
                self._listener.refuse(member, BadMessage(MessageFault.MALFORMED, str(error)))
                raise ConnectionResetError(f"malformed message: {error}") from error
            self._listener.member_message(member, message)
        if socket.exception() is not None:
            raise ConnectionResetError(f"stream failed: {socket.exception()}")
        if socket.close_code is not None and socket.close_code >= 1006:
            raise ConnectionResetError("connection lost")


def _close_message(reason: str) -> bytes:
    """The start of `reason` for a close frame: RFC 6455 allows 123 bytes of UTF-8.

    What a member wrote stands in it, which may hold half of a surrogate pair.
    """
    return one_line(reason).encode()[:120].decode(errors="ignore").encode()


def false_name(hello: Hello, caller: Caller, *, processes: int) -> str:
    """Why `hello` is not the caller's own; empty if it is.

    A pod of the trainer may take the places of its own ranks, a rollout none.
    """
    own = caller.identity
    if (hello.member.pod_uid, hello.pod) != (own.pod_uid, own.pod):
        return f"pod {own.pod} ({own.pod_uid}) says it is {hello.pod} ({hello.member.pod_uid})"
    place = None if hello.sender is None else hello.sender // processes
    if caller.role is CallerRole.TRAINER_RANK and place is None:
        return f"pod {own.pod} of the trainer says it is a rollout"
    if place != caller.trainer_ordinal:
        return f"pod {own.pod} says it is rank {hello.sender}"
    return ""
