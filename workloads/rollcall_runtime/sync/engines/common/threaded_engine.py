"""The base classes of most engines: sessions whose calls run on threads that can be abandoned.

A transport derives from `ThreadedEngine` and `ThreadedSession` and implements how to connect, send,
receive and disconnect. The base classes track the engine's sessions, host the sender's rendezvous,
serialize calls, abort them while the library still blocks, and limit how many may be stuck.
"""

import json
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from rollcall_protocol.wire.ids import MemberId, SessionId
from rollcall_protocol.wire.messages import Seat
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.chrome_trace import Trace, close_trace, open_trace
from rollcall_runtime.sync.engine import (
    Role,
    SyncEngine,
    SyncSession,
    SyncSettings,
    decode_descriptor,
)
from rollcall_runtime.sync.engines.common.abandonable_calls import AbandonableCalls
from rollcall_runtime.sync.errors import (
    AbortedError,
    ExhaustedError,
    JoinFailedError,
    SyncError,
    TimedOutError,
    TransferFailedError,
)
from rollcall_runtime.sync.memory.buffers import Buffer
from rollcall_runtime.sync.rendezvous import SessionRendezvous, address_descriptor
from rollcall_runtime.sync.rendezvous_server import RendezvousServer

_CLOSE_SECONDS = 1.0
_JOIN_GRACE_SECONDS = 0.25  # for a join at its deadline to find out which seat is empty
_POLL_SECONDS = 0.005

S = TypeVar("S", bound=SyncSettings)


class ThreadedEngine(SyncEngine):
    """Tracks its sessions; the sender's engine hosts the rendezvous."""

    def __init__(self) -> None:
        self._settings: SyncSettings | None = None
        self.address = ""
        self.member: MemberId | None = None
        self.rendezvous_server: RendezvousServer | None = None
        self.trace: Trace | None = None
        self._lock = threading.Lock()
        self._sessions: set[ThreadedSession] = set()
        self.read_bytes = 0  # requested from other members, by engines whose receivers read

    def open(self, *, member: MemberId, address: str, role: Role, settings: SyncSettings) -> bytes:
        """Bind to `address`; the descriptor is a JSON object with what `_open_transport` returns.

        Raises RuntimeError when the engine is already open.
        """
        if self._settings is not None:
            raise RuntimeError("the engine is already open")
        self._settings, self.address, self.member = settings, address, member
        if settings.profile:
            self.trace = open_trace(
                Path(settings.profile),
                process=f"{role}-{member.pod_uid}",
                limit=settings.profile_bytes,
            )
        descriptor = {"engine": self.name} | self._open_transport(role)
        if role is Role.SENDER:
            self.rendezvous_server = RendezvousServer(address)
            descriptor |= address_descriptor(self.rendezvous_server.address)
        return json.dumps(descriptor).encode()

    def open_session(
        self, *, group: str, session: SessionId, seats: Sequence[Seat], rank: int
    ) -> "ThreadedSession":
        """A session to join; see the base class."""
        if self._settings is None:
            raise RuntimeError("the engine is not open")
        opened = self._new_session(group=group, session=session, seats=seats, rank=rank)
        with self._lock:
            self._sessions.add(opened)
        return opened

    @property
    def settings(self) -> SyncSettings:
        """The settings that `open` was given, with the time for operations that is needed now."""
        if self._settings is None:
            raise RuntimeError("the engine is not open")
        seconds = self.stretch * self._settings.operation_timeout
        return replace(self._settings, operation_timeout=seconds)

    @property
    def abandoned(self) -> int:
        """How many sessions were aborted and are not freed yet."""
        with self._lock:
            return sum(session.aborted for session in self._sessions)

    def close(self) -> None:
        """Abort all sessions; the interpreter waits at exit for those that are stuck."""
        with self._lock:
            sessions = tuple(self._sessions)
        for session in sessions:
            session.abort()
        deadline = time.monotonic() + _CLOSE_SECONDS
        for session in sessions:
            session.wait_until_freed(max(0.0, deadline - time.monotonic()))
        if self.rendezvous_server is not None:
            self.rendezvous_server.close()
        self._close_transport()
        if self.trace is not None:
            self.trace = None
            close_trace(Path(self.settings.profile))

    def count_read(self, nbytes: int) -> None:
        """Add `nbytes` to the bytes that were requested from other members."""
        with self._lock:
            self.read_bytes += nbytes

    def settings_as(self, kind: type[S]) -> S:
        """The settings that `open` was given, as this engine's own settings class; TypeError."""
        if not isinstance(self.settings, kind):
            raise TypeError(f"{type(self.settings).__name__} are not settings of {self.name}")
        return self.settings

    def forget_session(self, session: "ThreadedSession") -> None:
        """Stop tracking a session that has released everything."""
        with self._lock:
            self._sessions.discard(session)

    # --- for transports to implement ---

    @abstractmethod
    def _new_session(
        self, *, group: str, session: SessionId, seats: Sequence[Seat], rank: int
    ) -> "ThreadedSession":
        """A session of this engine's class."""

    def _open_transport(self, role: Role) -> dict[str, Any]:  # noqa: ARG002
        """Start the transport; returns what other members need to reach it, as JSON."""
        return {}

    def _close_transport(self) -> None:
        """Free the transport; sessions may still be stuck in it."""


class ThreadedSession(SyncSession):
    """One member's session. The methods that transports implement run on threads of the session,
    one at a time; between two steps they call `_raise_if_aborted`. They raise a SyncError or one of
    `_library_errors`.
    """

    _library_errors: ClassVar[tuple[type[Exception], ...]] = (RuntimeError,)
    _uses_rendezvous: ClassVar[bool] = True  # the sender's
    _keeps_rendezvous: ClassVar[bool] = False  # connected as long as the session lives

    def __init__(
        self,
        *,
        group: str,
        session: SessionId,
        seats: Sequence[Seat],
        rank: int,
        engine: ThreadedEngine,
    ) -> None:
        super().__init__(session=session, seats=seats, rank=rank)
        self.name = f"{group}/{session}"
        self._track = group
        self.engine = engine
        self.settings = engine.settings
        self._failure = ""
        self._rendezvous: SessionRendezvous | None = None
        self._ending_join = threading.Lock()  # guards the two that follow: one of them stays False
        self._join_confirmed = self._join_given_up = False
        self._calls = AbandonableCalls(f"{engine.name} {self.name}", cleanup=self._free)

    @property
    def buffer_devices(self) -> frozenset[str]:
        """The torch device types of the engine's buffers."""
        return self.engine.buffer_devices

    @property
    def aborted(self) -> bool:
        """Whether `abort` was called."""
        return self._calls.abandoned.is_set()

    def join(self, *, timeout: float) -> None:
        """Meet the other seats at the sender's rendezvous and connect to them."""
        deadline = time.monotonic() + timeout
        with self._traced("join"):
            self._call(lambda: self._join(deadline), timeout=timeout + _JOIN_GRACE_SECONDS)

    def give_up_join(self) -> bool:
        """Whether this is the sender's seat and it has not confirmed the join; it never will."""
        if self.rank != 0 or not self._uses_rendezvous:
            return False
        with self._ending_join:
            self._join_given_up = not self._join_confirmed
            return self._join_given_up

    def publish(self, buffer: Buffer, manifest: WeightManifest, *, timeout: float) -> None:
        """Send the buffer; does nothing in a session of one."""
        self._check_buffer(buffer, manifest)
        deadline = time.monotonic() + timeout
        with self._traced("publish", bytes=manifest.total_bytes):
            if len(self.seats) == 1:
                self._call(self._raise_if_aborted, timeout=timeout)
            else:
                self._call(lambda: self._send(buffer, manifest, deadline), timeout=timeout)

    def receive(self, buffer: Buffer, manifest: WeightManifest, *, timeout: float) -> None:
        """Receive the sender's buffer."""
        self._check_buffer(buffer, manifest)
        deadline = time.monotonic() + timeout
        with self._traced("receive", bytes=manifest.total_bytes):
            self._call(lambda: self._receive(buffer, manifest, deadline), timeout=timeout)

    def receive_buckets(
        self, buffer: Buffer, manifest: WeightManifest, *, only: Sequence[int], timeout: float
    ) -> None:
        """Receive some buckets of the sender's buffer."""
        kept = manifest.only(only)
        self._check_buffer(buffer, kept)
        deadline = time.monotonic() + timeout
        with self._traced("receive", bytes=kept.total_bytes):
            self._call(
                lambda: self._receive_buckets(buffer, manifest, tuple(only), deadline),
                timeout=timeout,
            )

    def abort(self) -> None:
        """Wake the caller; what the library holds is freed when the library returns."""
        self._calls.abandon()

    def wait_until_freed(self, timeout: float) -> bool:
        """Whether the aborted session was freed within `timeout` seconds."""
        return self._calls.cleaned_up.wait(timeout)

    # --- for transports to implement; called on the session's threads ---

    @abstractmethod
    def _connect(self, rendezvous: SessionRendezvous, deadline: float) -> None:
        """Connect to the other seats, all of which have joined. `deadline` is monotonic."""

    def _join_without_rendezvous(self, deadline: float) -> None:
        """Meet in another way, for engines that set `_uses_rendezvous` to False."""
        raise NotImplementedError(f"{self.engine.name} joins through the rendezvous")

    @abstractmethod
    def _send(self, buffer: Buffer, manifest: WeightManifest, deadline: float) -> None:
        """Send to all other seats, holding the buffer as long as the library may read it."""

    @abstractmethod
    def _receive(self, buffer: Buffer, manifest: WeightManifest, deadline: float) -> None:
        """Fill the buffer and compare each bucket's digest; DigestMismatchError."""

    def _receive_buckets(
        self, buffer: Buffer, manifest: WeightManifest, only: tuple[int, ...], deadline: float
    ) -> None:
        """The same for some buckets of `manifest`, for engines that are `selective`."""
        raise NotImplementedError(f"engine {self.engine.name} sends all buckets to every receiver")

    @abstractmethod
    def _disconnect(self) -> None:
        """Release everything, waiting as long as the library needs; no call is running."""

    # --- for transports to call ---

    def _to_sync_error(self, error: Exception) -> SyncError:
        """The SyncError for one of `_library_errors`; may be overridden to name the peer."""
        return TransferFailedError(f"{self.name}: {error}")

    def _raise_if_aborted(self) -> None:
        """Raise AbortedError if the session was aborted."""
        if self._calls.abandoned.is_set():
            raise AbortedError(f"{self.name} was aborted")

    def _trace_bucket(self, bucket: int) -> None:
        """Record in the trace, if there is one, that a bucket was sent, or received and checked."""
        trace = self.engine.trace
        if trace is not None:
            trace.instant(f"bucket {bucket}", track=self._track, session=str(self.session))

    def _sleep(self, seconds: float) -> None:
        """Sleep, or until the session is aborted; then raise AbortedError."""
        self._calls.abandoned.wait(seconds)
        self._raise_if_aborted()

    # --- how calls run ---

    def _check_buffer(self, buffer: Buffer, manifest: WeightManifest) -> None:
        size = manifest.total_bytes
        if buffer.nbytes != size:
            raise ValueError(f"the buffer has {buffer.nbytes} bytes, the weights have {size}")
        if buffer.device not in self.engine.buffer_devices:
            taken = ", ".join(sorted(self.engine.buffer_devices))
            problem = f"engine {self.engine.name} moves weights in memory of: {taken}"
            raise ValueError(f"{problem}; this buffer is in memory of: {buffer.device}")

    def _traced(self, call: str, **details: Any) -> AbstractContextManager[None]:
        trace = self.engine.trace
        if trace is None:
            return nullcontext()
        return trace.span(call, track=self._track, session=str(self.session), **details)

    def _call(self, function: Callable[[], None], *, timeout: float) -> None:
        self._calls.call(lambda: self._fail_once(function), timeout=timeout)

    def _fail_once(self, function: Callable[[], None]) -> None:
        """After a failure ranks may disagree on what comes next, so every later call fails too."""
        if self._failure:
            raise TransferFailedError(f"{self.name} failed before: {self._failure}")
        try:
            function()
        except SyncError as error:
            self._failure = str(error)
            raise
        except self._library_errors as error:
            failure = self._to_sync_error(error)
            self._failure = str(failure)
            raise failure from error

    def _join(self, deadline: float) -> None:
        self._wait_for_stuck_sessions(deadline)
        if not self._uses_rendezvous:
            self._join_without_rendezvous(deadline)
            return
        if len(self.seats) == 1:
            return
        self._require_same_engine()
        rendezvous = SessionRendezvous(
            session=self.name, seats=self.seats, deadline=deadline, sleep=self._sleep
        )
        try:
            # First, because a library's own time-out does not name the missing member.
            rendezvous.wait_for_all_seats(self.rank)
            self._connect(rendezvous, deadline)
            self._confirm(rendezvous)
            if self._keeps_rendezvous:
                rendezvous.report_disconnect_of(self.rank)
                self._rendezvous = rendezvous
        finally:
            if self._rendezvous is None:
                rendezvous.close()

    def _confirm(self, rendezvous: SessionRendezvous) -> None:
        """The sender's join ends well before any other; see `give_up_join`."""
        if self.rank != 0:
            rendezvous.wait_for_sender()
            return
        server = self.engine.rendezvous_server
        if server is None:
            raise JoinFailedError(f"{self.name}: the first seat has no rendezvous")
        with self._ending_join:
            if self._join_given_up:
                raise AbortedError(f"{self.name} was given up")
            self._join_confirmed = True
        server.confirm(self.name)

    def _require_same_engine(self) -> None:
        """`auto` is resolved by each worker, so workers of one group may differ: name the seat."""
        mine = self.engine.name
        for seat in self.seats:
            other = decode_descriptor(seat).get("engine", mine)
            if other != mine:
                reason = f"{self.name}: member uses engine {other!r}, this worker uses {mine!r}"
                raise JoinFailedError(
                    f"{reason}; set spec.weightSync.engine to one engine", peer=seat.member
                )

    def _wait_for_stuck_sessions(self, deadline: float) -> None:
        """Limit how many aborted sessions are stuck; most are freed within milliseconds."""
        while (stuck := self.engine.abandoned) >= self.settings.max_abandoned:
            if time.monotonic() >= deadline:
                raise ExhaustedError(
                    f"{self.name}: {stuck} aborted sessions are still stuck in the library "
                    f"(limit {self.settings.max_abandoned})"
                )
            self._sleep(_POLL_SECONDS)

    def _free(self) -> None:
        try:
            if self._rendezvous is not None:
                self._rendezvous.close()
            self._disconnect()
        finally:
            self.engine.forget_session(self)


def seconds_left(deadline: float, *, doing: str) -> float:
    """Seconds until `deadline` (monotonic); TimedOutError, naming what was done, once it passed."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimedOutError(f"timed out {doing}")
    return left
