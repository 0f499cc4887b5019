"""What a peer engine keeps over its sessions: registered memory, and reads that have not ended."""

import contextlib
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

from rollcall_protocol.wire.ids import MemberId
from rollcall_runtime.sync.engine import SyncSettings
from rollcall_runtime.sync.engines.common.threaded_engine import ThreadedEngine
from rollcall_runtime.sync.engines.pull.pending_reads import LibraryRead
from rollcall_runtime.sync.engines.pull.topology import Topology
from rollcall_runtime.sync.memory.buffers import Buffer, FlatBuffer


@dataclass(slots=True)
class _Registration:
    """The library's handle, and how many publications use the memory now."""

    handle: object
    uses: int = 0


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
    """The registered memory and the connections of one process.

    Memory is registered while peers read it, and no longer where the library lets every client
    that connects write to registered memory. With `keeps_registered` it stays so while its buffer
    lives.
    """

    selective: ClassVar[bool] = True
    keeps_registered: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self._registering = threading.Lock()
        self._registered: weakref.WeakKeyDictionary[FlatBuffer, _Registration] = (
            weakref.WeakKeyDictionary()
        )
        self._draining_lock = threading.Lock()
        self._draining: list[Callable[[float], bool]] = []

    @property
    def registers_targets(self) -> bool:
        """Whether memory must be registered to read into it."""
        return True

    @contextlib.contextmanager
    def sent(self, buffer: Buffer) -> Iterator[dict[str, Any]]:
        """As `registered`, for a buffer that stays as it is: peers cannot write to it if the
        transport can be kept from that.
        """
        with self._protected(buffer.root), self.registered(buffer) as source:
            yield source

    @contextlib.contextmanager
    def registered(self, buffer: Buffer) -> Iterator[dict[str, Any]]:
        """Register the whole buffer; yields, as JSON, how peers can read this part of it."""
        root = buffer.root
        with self._registering:
            self._begin_use(root)
        try:
            yield {"address": buffer.address, **self._describe()}
        finally:
            with self._registering:
                self._end_use(root)

    def _begin_use(self, root: FlatBuffer) -> None:
        if not root.nbytes:
            return
        if root not in self._registered:
            handle = self._register(root.address, root.nbytes)
            self._registered[root] = _Registration(handle)
            if self.keeps_registered:
                weakref.finalize(root, self._forget, handle, root.address).atexit = False
        self._registered[root].uses += 1

    def _end_use(self, root: FlatBuffer) -> None:
        registration = self._registered.get(root)
        if registration is None:
            return
        registration.uses -= 1
        if not registration.uses and not self.keeps_registered:
            del self._registered[root]
            self._unregister(registration.handle, root.address)

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

    def _protected(self, root: FlatBuffer) -> AbstractContextManager[None]:  # noqa: ARG002
        """Keep a buffer that is sent from being written to, if the transport bears that."""
        return contextlib.nullcontext()

    # --- for transports; all raise RuntimeError or one of their sessions' `_library_errors` ---

    @abstractmethod
    def _register(self, address: int, nbytes: int) -> object:
        """Let peers read this memory; returns a handle for `_unregister`."""

    @abstractmethod
    def _unregister(self, handle: object, address: int) -> None:
        """Let peers read this memory no longer; it may be about to be freed."""

    @abstractmethod
    def _describe(self) -> dict[str, Any]:
        """What a peer needs besides an address, as JSON; called after each registration."""

    @abstractmethod
    def connect(self, source: dict[str, Any]) -> object:
        """Prepare to read from what a peer described; cheap when it is connected already."""

    @abstractmethod
    def read(self, peer: object, *, remote: int, local: int, nbytes: int) -> LibraryRead:
        """Begin to read `nbytes` from the peer's address `remote` to `local`."""
