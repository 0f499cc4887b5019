"""What a peer engine keeps over its sessions: registered memory, and reads that have not ended.

Memory is registered once, for as long as its buffer lives.
"""

import contextlib
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, ClassVar

from rollcall_protocol.wire.ids import MemberId
from rollcall_runtime.sync.engine import SyncSettings
from rollcall_runtime.sync.engines.common.threaded_engine import ThreadedEngine
from rollcall_runtime.sync.engines.pull.pending_reads import LibraryRead
from rollcall_runtime.sync.engines.pull.topology import Topology
from rollcall_runtime.sync.memory.buffers import Buffer, FlatBuffer


@dataclass(frozen=True, slots=True)
class PullSettings(SyncSettings):
    """`topology` is auto, star, tree or chain.

    A read that was abandoned may write into its buffer until its source dies. Its session waits
    `drain_timeout` seconds for that; the buffer is not reused before the read has ended.
    """

    operation_bytes: int = 16 << 20
    topology: str = Topology.AUTO.value
    drain_timeout: float = 30.0

    def __post_init__(self) -> None:
        SyncSettings.__post_init__(self)
        if self.topology not in set(Topology):
            raise ValueError(f"topology must be one of {', '.join(Topology)}")
        if self.drain_timeout < 0:
            raise ValueError("drain_timeout must not be negative")


class PullEngine(ThreadedEngine):
    """The registered memory and the connections of one process."""

    selective: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self._registering = threading.Lock()
        self._registered: weakref.WeakKeyDictionary[FlatBuffer, object] = (
            weakref.WeakKeyDictionary()
        )
        self._draining_lock = threading.Lock()
        self._draining: list[Callable[[float], bool]] = []

    def register_source(self, buffer: Buffer) -> dict[str, Any]:
        """Register the whole buffer, once; returns, as JSON, how peers can read this part of it."""
        root = buffer.root
        with self._registering:
            if root not in self._registered and root.nbytes:
                self._registered[root] = handle = self._register(root.address, root.nbytes)
                weakref.finalize(root, self._forget, handle, root.address).atexit = False
        return {"address": buffer.address, **self._describe()}

    @property
    def abandoned(self) -> int:
        """Includes sessions that are freed but for a read that may still write into a buffer."""
        return super().abandoned + self._drain()

    def drain_later(self, drain: Callable[[float], bool]) -> None:
        """Keep a freed session's reads; `drain(seconds)` says whether they end in that time."""
        with self._draining_lock:
            self._draining.append(drain)

    def begin_session(self) -> None:
        """Free reads that have ended, and disconnect from members that are in no session."""
        self._drain()
        with self._lock:
            sessions = [session for session in self._sessions if not session.aborted]
        self._keep_peers({seat.member for session in sessions for seat in session.seats})

    def _drain(self) -> int:
        with self._draining_lock:
            self._draining = [drain for drain in self._draining if not drain(0.0)]
            return len(self._draining)

    def _keep_peers(self, members: AbstractSet[MemberId]) -> None:
        """Disconnect from all peers but these; for transports that hold connections."""

    def _forget(self, handle: object, address: int) -> None:
        with contextlib.suppress(RuntimeError):  # the memory is freed, whatever the library says
            self._unregister(handle, address)

    # --- for transports; all raise RuntimeError or one of their sessions' `_library_errors` ---

    @abstractmethod
    def _register(self, address: int, nbytes: int) -> object:
        """Let peers read this memory; returns a handle for `_unregister`."""

    @abstractmethod
    def _unregister(self, handle: object, address: int) -> None:
        """The memory is about to be freed."""

    @abstractmethod
    def _describe(self) -> dict[str, Any]:
        """What a peer needs besides an address, as JSON; called after each registration."""

    @abstractmethod
    def connect(self, source: dict[str, Any]) -> object:
        """Prepare to read from what a peer described; cheap when it is connected already."""

    @abstractmethod
    def read(self, peer: object, *, remote: int, local: int, nbytes: int) -> LibraryRead:
        """Begin to read `nbytes` from the peer's address `remote` to `local`."""
