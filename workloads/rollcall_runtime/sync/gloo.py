"""The embedded CPU engine: gloo process groups built by hand, one for each session.

Gloo cannot cancel an operation and does not reliably notice a dead peer. So a session's calls run
on threads that outlive an aborted session until gloo lets go, at the latest at the operation's
timeout.
"""

import re
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import BroadcastOptions, ProcessGroupGloo, Store

from rollcall_protocol.ids import MemberId, SessionId
from rollcall_protocol.manifest import Manifest
from rollcall_protocol.messages import Seat
from rollcall_runtime.sync.buckets import BucketMover, Work
from rollcall_runtime.sync.buffers import HostBuffer
from rollcall_runtime.sync.engine import EngineKind, Role, SyncEngine, SyncSession, SyncSettings
from rollcall_runtime.sync.errors import (
    AbortedError,
    ExhaustedError,
    JoinFailedError,
    SyncError,
    TimedOutError,
    TransferFailedError,
)
from rollcall_runtime.sync.owner import Owner
from rollcall_runtime.sync.rendezvous import Rendezvous, RendezvousServer

_JOIN_GRACE = 0.25  # seconds for a join at its deadline to find out who is missing
_CLOSE_SECONDS = 1.0
_POLL_SECONDS = 0.005


class GlooEngine(SyncEngine):
    """Broadcast over TCP between host buffers."""

    name = "gloo"
    kind = EngineKind.GROUP
    devices = frozenset({"cpu"})

    def __init__(self) -> None:
        self._settings = SyncSettings()
        self._address: str | None = None
        self._server: RendezvousServer | None = None
        self._lock = threading.Lock()
        self._sessions: set[GlooSession] = set()

    def open(
        self,
        *,
        member: MemberId,  # noqa: ARG002 - seats carry all that gloo needs
        address: str,
        role: Role,
        settings: SyncSettings,
    ) -> bytes:
        """Host the rendezvous if this is the sender; its descriptor says where that listens."""
        if self._address is not None:
            raise RuntimeError("the engine is open already")
        self._settings = settings
        self._address = address
        if role is Role.RECEIVER:
            return b"{}"
        self._server = RendezvousServer(address)
        return self._server.address.descriptor()

    def open_session(
        self, *, group: str, session: SessionId, seats: Sequence[Seat], rank: int
    ) -> "GlooSession":
        """A session to join; see the base class."""
        if self._address is None:
            raise RuntimeError("the engine is not open")
        opened = GlooSession(
            group=group,
            session=session,
            seats=seats,
            rank=rank,
            address=self._address,
            settings=self._settings,
            engine=self,
        )
        with self._lock:
            self._sessions.add(opened)
        return opened

    @property
    def abandoned(self) -> int:
        """Sessions that were aborted and are not freed yet."""
        with self._lock:
            return sum(session.aborted for session in self._sessions)

    def close(self) -> None:
        """Abort all sessions; the interpreter's end waits for those that gloo holds on to."""
        with self._lock:
            sessions = tuple(self._sessions)
        for session in sessions:
            session.abort()
        deadline = time.monotonic() + _CLOSE_SECONDS
        for session in sessions:
            session.wait_gone(max(0.0, deadline - time.monotonic()))
        if self._server is not None:
            self._server.close()

    def gone(self, session: "GlooSession") -> None:
        """A session has freed its group."""
        with self._lock:
            self._sessions.discard(session)


class GlooSession(SyncSession):
    """One process group, and what owns it while gloo is busy."""

    def __init__(
        self,
        *,
        group: str,
        session: SessionId,
        seats: Sequence[Seat],
        rank: int,
        address: str,
        settings: SyncSettings,
        engine: GlooEngine,
    ) -> None:
        super().__init__(session=session, seats=seats, rank=rank)
        self._name = f"{group}/{session}"
        self._address = address
        self._settings = settings
        self._engine = engine
        self._owner = Owner(f"gloo {self._name}", cleanup=self._free)
        # What follows is touched by the owner's threads alone, one at a time.
        self._group: Any = None
        self._store: Store | None = None
        self._failure = ""
        self._mover = BucketMover(start=self._broadcast, stop=self._stop, settings=settings)

    @property
    def aborted(self) -> bool:
        """Whether `abort` was called."""
        return self._owner.abandoned.is_set()

    def join(self, *, timeout: float) -> None:
        """Meet the other seats at the sender and connect to each."""
        deadline = time.monotonic() + timeout
        self._call(lambda: self._join(deadline), timeout=timeout + _JOIN_GRACE)

    def publish(self, buffer: HostBuffer, manifest: Manifest, *, timeout: float) -> None:
        """Broadcast the buffer; trivial in a session of one."""
        _check_size(buffer, manifest)
        deadline = time.monotonic() + timeout
        if len(self.seats) == 1:
            self._call(self._stop, timeout=timeout)
        else:
            self._call(lambda: self._mover.send(buffer, manifest, deadline), timeout=timeout)

    def receive(self, buffer: HostBuffer, manifest: Manifest, *, timeout: float) -> None:
        """Take part in the sender's broadcast."""
        _check_size(buffer, manifest)
        deadline = time.monotonic() + timeout
        self._call(lambda: self._mover.receive(buffer, manifest, deadline), timeout=timeout)

    def abort(self) -> None:
        """Wake the caller; the group is freed when gloo lets go of it."""
        self._owner.abandon()

    def wait_gone(self, timeout: float) -> bool:
        """Whether the aborted session was freed within `timeout` seconds."""
        return self._owner.gone.wait(timeout)

    def _call(self, function: Callable[[], None], *, timeout: float) -> None:
        self._owner.call(lambda: self._latched(function), timeout=timeout)

    # --- on the owner's threads ---

    def _latched(self, function: Callable[[], None]) -> None:
        """After a failure ranks may disagree on what comes next, so nothing comes next."""
        if self._failure:
            raise TransferFailedError(f"{self._name} failed before: {self._failure}")
        try:
            function()
        except SyncError as error:
            self._failure = str(error)
            raise
        except RuntimeError as error:
            failure = self._explain(error)
            self._failure = str(failure)
            raise failure from error

    def _join(self, deadline: float) -> None:
        self._wait_for_room(deadline)
        if len(self.seats) == 1:
            return
        rendezvous = Rendezvous(
            room=self._name, seats=self.seats, deadline=deadline, rest=self._rest
        )
        try:
            # First, because gloo's own wait names nobody.
            rendezvous.meet(self.rank)
            self._build(rendezvous)
        finally:
            rendezvous.close()

    def _build(self, rendezvous: Rendezvous) -> None:
        make: Any = ProcessGroupGloo  # its stubs know neither these options nor this constructor
        options = make._Options()  # noqa: SLF001
        options._timeout = timedelta(seconds=self._settings.operation_timeout)  # noqa: SLF001
        options._threads = self._settings.threads  # noqa: SLF001
        options._devices = [make.create_device(hostname=self._address)]  # noqa: SLF001
        self._store = _RendezvousStore(rendezvous)
        try:
            self._group = make(self._store, self.rank, len(self.seats), options)
        except RuntimeError as error:
            cause = self._explain(error)
            raise JoinFailedError(str(cause), peer=cause.peer) from error

    def _wait_for_room(self, deadline: float) -> None:
        """Bound what aborted sessions hold; most are gone within milliseconds."""
        while (stuck := self._engine.abandoned) >= self._settings.max_abandoned:
            if time.monotonic() >= deadline:
                raise ExhaustedError(f"{self._name}: {stuck} abandoned sessions are still stuck")
            self._rest(_POLL_SECONDS)

    def _broadcast(self, chunk: memoryview, seconds: float) -> Work:
        if self._group is None:
            raise TransferFailedError(f"{self._name} was not joined")
        options = BroadcastOptions()
        options.rootRank = 0
        options.rootTensor = 0
        options.timeout = timedelta(seconds=seconds)  # torch 2.6 goes by the group's instead
        work: Work = self._group.broadcast([torch.frombuffer(chunk, dtype=torch.uint8)], options)
        return work

    def _explain(self, error: RuntimeError) -> SyncError:
        text = str(error).partition("\n")[0]  # what follows is a stack
        if "imed out" in text:
            return TimedOutError(f"{self._name}: {text}")
        named = set(re.findall(r"\[([0-9a-fA-F.:]+)\]:\d+", text))
        peers = [seat.member for seat in self.seats if seat.address in named]
        peer = peers[0] if len(peers) == 1 else None
        return TransferFailedError(f"{self._name}: {text}", peer=peer)

    def _rest(self, seconds: float) -> None:
        self._owner.abandoned.wait(seconds)
        self._stop()

    def _stop(self) -> None:
        if self._owner.abandoned.is_set():
            raise AbortedError(f"{self._name} was aborted")

    def _free(self) -> None:
        self._mover.drain()
        self._group = None  # would block while an operation is in flight; none is left
        self._store = None  # after the group, which points to it
        self._engine.gone(self)


class _RendezvousStore(Store):
    """What gloo asks of a store while a group is built: each rank's addresses."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        super().__init__()
        self._rendezvous = rendezvous

    def set(self, key: str, value: bytes) -> None:  # type: ignore[override]  # torch gives bytes
        self._rendezvous.put(key, value)

    def get(self, key: str) -> bytes:
        return self._rendezvous.get(key)

    def wait(
        self,
        keys: list[str],
        timeout: timedelta | None = None,  # noqa: ARG002 - the join's deadline holds
    ) -> None:
        for key in keys:
            self._rendezvous.get(key)


def _check_size(buffer: HostBuffer, manifest: Manifest) -> None:
    if buffer.nbytes != manifest.total_bytes:
        raise ValueError(f"buffer of {buffer.nbytes} bytes for {manifest.total_bytes} of weights")
