"""What a peer engine keeps over its sessions: memory that peers may read, and reads that are stuck.

Memory is registered once, for as long as its buffer lives.
"""

import contextlib
import threading
import weakref
from abc import abstractmethod
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rollcall_protocol.wire.ids import MemberId
from rollcall_runtime.sync.engine import SyncSettings
from rollcall_runtime.sync.engines.common.threaded_engine import ThreadedEngine
from rollcall_runtime.sync.engines.pull.pending_reads import Read
from rollcall_runtime.sync.engines.pull.topology import Topology
from rollcall_runtime.sync.memory.buffers import Buffer, FlatBuffer

if TYPE_CHECKING:
    from rollcall_runtime.sync.engines.pull.session import PullSession


@dataclass(frozen=True, slots=True)
class PullSettings(SyncSettings):
    """`topology` is auto, star, tree or chain.

    A read that was given up may go on writing until its source dies. Its session waits
    `drain_timeout` seconds for that; the buffer is lent to nobody until it has come.
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
    """Registered memory and connections of one process."""

    selective: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self._registering = threading.Lock()
        self._registered: weakref.WeakKeyDictionary[FlatBuffer, object] = (
            weakref.WeakKeyDictionary()
        )
        self._settling = threading.Lock()
        self._stuck: list[PullSession] = []  # gone, but for reads that have not ended

    def source(self, buffer: Buffer) -> dict[str, Any]:
        """Register the whole buffer, once; returns, as JSON, how others can read this part."""
        root = buffer.root
        with self._registering:
            if root not in self._registered and root.nbytes:
                self._registered[root] = handle = self._register(root.address, root.nbytes)
                weakref.finalize(root, self._forget, handle, root.address).atexit = False
        return {"address": buffer.address, **self._describe()}

    @property
    def abandoned(self) -> int:
        """Also sessions that are gone but for a read that may still write into their buffer."""
        return super().abandoned + self._settle()

    def leave(self, session: "PullSession") -> None:
        """Look after what a session that is gone has in flight."""
        with self._settling:
            self._stuck.append(session)

    def refresh(self) -> None:
        """A session begins: free what has ended, forget peers that are in no session."""
        self._settle()
        with self._lock:
            sessions = [session for session in self._sessions if not session.aborted]
        self._keep({seat.member for session in sessions for seat in session.seats})

    def _settle(self) -> int:
        with self._settling:
            self._stuck = [session for session in self._stuck if not session.settled(0.0)]
            return len(self._stuck)

    def _keep(self, members: AbstractSet[MemberId]) -> None:
        """Forget all peers but these; for engines that know them."""

    def _forget(self, handle: object, address: int) -> None:
        with contextlib.suppress(RuntimeError):  # the memory goes, whatever the library says
            self._unregister(handle, address)

    # --- for engines; all raise RuntimeError, or what their sessions' `_faults` lists ---

    @abstractmethod
    def _register(self, address: int, nbytes: int) -> object:
        """Let peers read this memory."""

    @abstractmethod
    def _unregister(self, handle: object, address: int) -> None:
        """The memory is about to go."""

    @abstractmethod
    def _describe(self) -> dict[str, Any]:
        """What a peer needs besides an address, as JSON; asked after each registration."""

    @abstractmethod
    def reach(self, source: dict[str, Any]) -> object:
        """Get ready to read from what a peer described; cheap when it is known already."""

    @abstractmethod
    def read(self, peer: object, *, remote: int, local: int, nbytes: int) -> Read:
        """Begin to read `nbytes` from the peer's address `remote` to `local`."""
