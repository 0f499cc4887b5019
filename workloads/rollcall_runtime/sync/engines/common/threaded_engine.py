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
from rollcall_runtime.sync.engines.common.abandonable_calls import Owner
from rollcall_runtime.sync.errors import (
    AbortedError,
    ExhaustedError,
    JoinFailedError,
    SyncError,
    TimedOutError,
    TransferFailedError,
)
from rollcall_runtime.sync.memory.buffers import Buffer
from rollcall_runtime.sync.rendezvous import Rendezvous
from rollcall_runtime.sync.rendezvous_server import RendezvousServer

_CLOSE_SECONDS = 1.0
_JOIN_GRACE = 0.25  # seconds for a join at its deadline to find out who is missing
_POLL_SECONDS = 0.005

S = TypeVar("S", bound=SyncSettings)


class ThreadedEngine(SyncEngine):
    """Keeps account of its sessions; the sender's hosts the rendezvous."""

    def __init__(self) -> None:
        self._settings: SyncSettings | None = None
        self.address = ""
        self.member: MemberId | None = None
        self.server: RendezvousServer | None = None
        self.trace: Trace | None = None
        self._lock = threading.Lock()
        self._sessions: set[ThreadedSession] = set()
        self.read_bytes = 0  # asked of others, where receivers read

    def open(self, *, member: MemberId, address: str, role: Role, settings: SyncSettings) -> bytes:
        """Bind; the descriptor is a JSON object of what `_start` returns."""
        if self._settings is not None:
            raise RuntimeError("the engine is open already")
        self._settings, self.address, self.member = settings, address, member
        if settings.profile:
            self.trace = open_trace(
                Path(settings.profile),
                process=f"{role}-{member.pod_uid}",
                limit=settings.profile_bytes,
            )
        descriptor = {"engine": self.name} | self._start(role)
        if role is Role.SENDER:
            self.server = RendezvousServer(address)
            descriptor |= self.server.address.descriptor()
        return json.dumps(descriptor).encode()

    def open_session(
        self, *, group: str, session: SessionId, seats: Sequence[Seat], rank: int
    ) -> "ThreadedSession":
        """A session to join; see the base class."""
        if self._settings is None:
            raise RuntimeError("the engine is not open")
        opened = self._make(group=group, session=session, seats=seats, rank=rank)
        with self._lock:
            self._sessions.add(opened)
        return opened

    @property
    def settings(self) -> SyncSettings:
        """What `open` was given."""
        if self._settings is None:
            raise RuntimeError("the engine is not open")
        return self._settings

    @property
    def abandoned(self) -> int:
        """Sessions that were aborted and are not freed yet."""
        with self._lock:
            return sum(session.aborted for session in self._sessions)

    def close(self) -> None:
        """Abort all sessions; the interpreter's end waits for those that are stuck."""
        with self._lock:
            sessions = tuple(self._sessions)
        for session in sessions:
            session.abort()
        deadline = time.monotonic() + _CLOSE_SECONDS
        for session in sessions:
            session.wait_gone(max(0.0, deadline - time.monotonic()))
        if self.server is not None:
            self.server.close()
        self._stop()
        if self.trace is not None:
            self.trace = None
            close_trace(Path(self.settings.profile))

    def count_read(self, nbytes: int) -> None:
        """So many bytes were asked of others."""
        with self._lock:
            self.read_bytes += nbytes

    def settings_as(self, kind: type[S]) -> S:
        """What `open` was given, as this engine's own class of settings; TypeError."""
        if not isinstance(self.settings, kind):
            raise TypeError(f"{type(self.settings).__name__} are not settings of {self.name}")
        return self.settings

    def gone(self, session: "ThreadedSession") -> None:
        """A session has let go of everything."""
        with self._lock:
            self._sessions.discard(session)

    # --- for engines ---

    @abstractmethod
    def _make(
        self, *, group: str, session: SessionId, seats: Sequence[Seat], rank: int
    ) -> "ThreadedSession":
        """A session of this engine's class."""

    def _start(self, role: Role) -> dict[str, Any]:  # noqa: ARG002
        """Begin to listen; returns what other members must know, as JSON."""
        return {}

    def _stop(self) -> None:
        """Free what is left; sessions may still be stuck."""


class ThreadedSession(SyncSession):
    """One member's session. The `_` methods that engines write run on the owner's threads, one at a
    time; they call `_check` between two steps, and raise a SyncError or one of `_faults`.
    """

    _faults: ClassVar[tuple[type[Exception], ...]] = (RuntimeError,)
    _meets: ClassVar[bool] = True  # at the sender's rendezvous
    _stays: ClassVar[bool] = False  # in the rendezvous' room, as long as the session lives

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
        self._room: Rendezvous | None = None
        self._owner = Owner(f"{engine.name} {self.name}", cleanup=self._free)

    @property
    def memories(self) -> frozenset[str]:
        """The engine's."""
        return self.engine.memories

    @property
    def aborted(self) -> bool:
        """Whether `abort` was called."""
        return self._owner.abandoned.is_set()

    def join(self, *, timeout: float) -> None:
        """Meet the other seats at the sender and connect to them."""
        deadline = time.monotonic() + timeout
        with self._traced("join"):
            self._call(lambda: self._join(deadline), timeout=timeout + _JOIN_GRACE)

    def publish(self, buffer: Buffer, manifest: WeightManifest, *, timeout: float) -> None:
        """Send the buffer; trivial in a session of one."""
        self._check_buffer(buffer, manifest)
        deadline = time.monotonic() + timeout
        with self._traced("publish", bytes=manifest.total_bytes):
            if len(self.seats) == 1:
                self._call(self._check, timeout=timeout)
            else:
                self._call(lambda: self._send(buffer, manifest, deadline), timeout=timeout)

    def receive(self, buffer: Buffer, manifest: WeightManifest, *, timeout: float) -> None:
        """Take what the sender sends."""
        self._check_buffer(buffer, manifest)
        deadline = time.monotonic() + timeout
        with self._traced("receive", bytes=manifest.total_bytes):
            self._call(lambda: self._take(buffer, manifest, deadline), timeout=timeout)

    def receive_buckets(
        self, buffer: Buffer, manifest: WeightManifest, *, only: Sequence[int], timeout: float
    ) -> None:
        """Take some of what the sender sends."""
        kept = manifest.only(only)
        self._check_buffer(buffer, kept)
        deadline = time.monotonic() + timeout
        with self._traced("receive", bytes=kept.total_bytes):
            self._call(
                lambda: self._take_buckets(buffer, manifest, tuple(only), deadline),
                timeout=timeout,
            )

    def abort(self) -> None:
        """Wake the caller; what the library holds is freed when it lets go."""
        self._owner.abandon()

    def wait_gone(self, timeout: float) -> bool:
        """Whether the aborted session was freed within `timeout` seconds."""
        return self._owner.gone.wait(timeout)

    # --- for engines, on the owner's threads ---

    @abstractmethod
    def _connect(self, rendezvous: Rendezvous, deadline: float) -> None:
        """Connect to the others, who have all entered the room. `deadline` is monotonic."""

    def _join_alone(self, deadline: float) -> None:
        """Meet without the rendezvous, for engines that set `_meets` to False."""
        raise NotImplementedError(f"{self.engine.name} meets nowhere")

    @abstractmethod
    def _send(self, buffer: Buffer, manifest: WeightManifest, deadline: float) -> None:
        """Send to all other seats, pinning the buffer as long as the library may read it."""

    @abstractmethod
    def _take(self, buffer: Buffer, manifest: WeightManifest, deadline: float) -> None:
        """Fill the buffer and compare each bucket's CRC-32; ChecksumMismatchError."""

    def _take_buckets(
        self, buffer: Buffer, manifest: WeightManifest, only: tuple[int, ...], deadline: float
    ) -> None:
        """The same for some buckets of `manifest`, for engines that are `selective`."""
        raise NotImplementedError(f"{self.engine.name} gives every receiver everything")

    @abstractmethod
    def _disconnect(self) -> None:
        """Let go of everything, waiting as long as the library needs; no call is running."""

    def _explain(self, error: Exception) -> SyncError:
        """What one of `_faults` means."""
        return TransferFailedError(f"{self.name}: {error}")

    def _check(self) -> None:
        """Raise AbortedError if the session was given up."""
        if self._owner.abandoned.is_set():
            raise AbortedError(f"{self.name} was aborted")

    def _landed(self, bucket: int) -> None:
        """Put it into the trace, if there is one, that a bucket was sent, or arrived whole."""
        trace = self.engine.trace
        if trace is not None:
            trace.instant(f"bucket {bucket}", track=self._track, session=str(self.session))

    def _rest(self, seconds: float) -> None:
        """Wait a little, or until the session is given up, which raises AbortedError."""
        self._owner.abandoned.wait(seconds)
        self._check()

    # --- how calls run ---

    def _check_buffer(self, buffer: Buffer, manifest: WeightManifest) -> None:
        size = manifest.total_bytes
        if buffer.nbytes != size:
            raise ValueError(f"buffer of {buffer.nbytes} bytes for {size} of weights")
        if buffer.device not in self.engine.memories:
            taken = ", ".join(sorted(self.engine.memories))
            problem = f"engine {self.engine.name} takes weights in memory of the {taken}"
            raise ValueError(f"{problem}, not of the {buffer.device}")

    def _traced(self, call: str, **details: Any) -> AbstractContextManager[None]:
        trace = self.engine.trace
        if trace is None:
            return nullcontext()
        return trace.span(call, track=self._track, session=str(self.session), **details)

    def _call(self, function: Callable[[], None], *, timeout: float) -> None:
        self._owner.call(lambda: self._latched(function), timeout=timeout)

    def _latched(self, function: Callable[[], None]) -> None:
        """After a failure ranks may disagree on what comes next, so nothing comes next."""
        if self._failure:
            raise TransferFailedError(f"{self.name} failed before: {self._failure}")
        try:
            function()
        except SyncError as error:
            self._failure = str(error)
            raise
        except self._faults as error:
            failure = self._explain(error)
            self._failure = str(failure)
            raise failure from error

    def _join(self, deadline: float) -> None:
        self._wait_for_room(deadline)
        if not self._meets:
            self._join_alone(deadline)
            return
        if len(self.seats) == 1:
            return
        self._compare_engines()
        rendezvous = Rendezvous(
            room=self.name, seats=self.seats, deadline=deadline, rest=self._rest
        )
        try:
            # First, because a library's own wait names nobody.
            rendezvous.meet(self.rank)
            self._connect(rendezvous, deadline)
            if self._stays:
                rendezvous.stay(self.rank)
                self._room = rendezvous
        finally:
            if self._room is None:
                rendezvous.close()

    def _compare_engines(self) -> None:
        """`auto` is each worker's own choice, and nobody else would say why nobody meets."""
        mine = self.engine.name
        for seat in self.seats:
            other = decode_descriptor(seat).get("engine", mine)
            if other != mine:
                reason = f"{self.name}: it uses engine {other!r}, this worker {mine!r}"
                raise JoinFailedError(f"{reason}; name one for the group", peer=seat.member)

    def _wait_for_room(self, deadline: float) -> None:
        """Bound what aborted sessions hold; most are gone within milliseconds."""
        while (stuck := self.engine.abandoned) >= self.settings.max_abandoned:
            if time.monotonic() >= deadline:
                raise ExhaustedError(f"{self.name}: {stuck} abandoned sessions are still stuck")
            self._rest(_POLL_SECONDS)

    def _free(self) -> None:
        try:
            if self._room is not None:
                self._room.close()
            self._disconnect()
        finally:
            self.engine.gone(self)


def time_left(deadline: float, *, doing: str) -> float:
    """Seconds until `deadline` (monotonic); TimedOutError when it has passed."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimedOutError(f"no time is left {doing}")
    return left
