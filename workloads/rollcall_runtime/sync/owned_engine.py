"""An engine that keeps account of its sessions; most engines derive from it."""

import json
import threading
import time
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rollcall_protocol.wire.ids import MemberId, SessionId
from rollcall_protocol.wire.messages import Seat
from rollcall_runtime.sync.engine import Role, SyncEngine, SyncSettings
from rollcall_runtime.sync.rendezvous_server import RendezvousServer
from rollcall_runtime.sync.trace import Trace, close_trace, open_trace

if TYPE_CHECKING:
    from rollcall_runtime.sync.sessions import OwnedSession

_CLOSE_SECONDS = 1.0

S = TypeVar("S", bound=SyncSettings)


class OwnedEngine(SyncEngine):
    """Keeps account of its sessions; the sender's hosts the rendezvous."""

    def __init__(self) -> None:
        self._settings: SyncSettings | None = None
        self.address = ""
        self.member: MemberId | None = None
        self.server: RendezvousServer | None = None
        self.trace: Trace | None = None
        self._lock = threading.Lock()
        self._sessions: set[OwnedSession] = set()
        self.read_bytes = 0  # asked of others, where receivers read

    def open(self, *, member: MemberId, address: str, role: Role, settings: SyncSettings) -> bytes:
        """Bind; the descriptor is a JSON object of what `_start` returns."""
        if self._settings is not None:
            raise RuntimeError("the engine is open already")
        self._settings, self.address, self.member = settings, address, member
        if settings.profile:
            self.trace = open_trace(
                Path(settings.profile), process=f"{role}-{member.pod_uid}",
                limit=settings.profile_bytes,
            )  # fmt: skip
        descriptor = {"engine": self.name} | self._start(role)
        if role is Role.SENDER:
            self.server = RendezvousServer(address)
            descriptor |= self.server.address.descriptor()
        return json.dumps(descriptor).encode()

    def open_session(
        self, *, group: str, session: SessionId, seats: Sequence[Seat], rank: int
    ) -> "OwnedSession":
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

    def gone(self, session: "OwnedSession") -> None:
        """A session has let go of everything."""
        with self._lock:
            self._sessions.discard(session)

    # --- for engines ---

    @abstractmethod
    def _make(
        self, *, group: str, session: SessionId, seats: Sequence[Seat], rank: int
    ) -> "OwnedSession":
        """A session of this engine's class."""

    def _start(self, role: Role) -> dict[str, Any]:  # noqa: ARG002
        """Begin to listen; returns what other members must know, as JSON."""
        return {}

    def _stop(self) -> None:
        """Free what is left; sessions may still be stuck."""
