"""NIXL: one-sided reads between registered buffers, through UCX (TCP, RDMA) or another backend.

NIXL brings a UCX of its own, which aborts where symbols of another one come first: where PyTorch
has loaded one for the whole process (Debian's does, through its MPI; the CPU image mends that) the
engine says that it is not available.

UCX reads its own settings from the environment when the engine is opened; what is already set there
wins over the job's. It notices a dead peer within tenths of a second, and waits for a stopped one
for ever, so reads are looked at and given up here.
"""

import ctypes
import os
import threading
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import torch  # noqa: F401 - first, for what it links

from rollcall_protocol.wire.ids import MemberId, SessionId
from rollcall_protocol.wire.messages import Seat
from rollcall_runtime.sync.engine import EngineKind, Role
from rollcall_runtime.sync.engines.pull.engine import PullEngine, PullSettings
from rollcall_runtime.sync.engines.pull.pending_reads import Read
from rollcall_runtime.sync.engines.pull.session import PullSession

if hasattr(ctypes.CDLL(None), "ucs_init"):
    raise ImportError(
        "another UCX, in front of which NIXL's own would abort, is visible in the whole process; "
        "use a PyTorch that does not load one so"
    )

from rollcall_runtime.sync.engines.nixl.agent import ERRORS, Agent, State


@dataclass(frozen=True, slots=True)
class NixlSettings(PullSettings):
    """`backend` is NIXL's plugin. `transports` and `net_devices` are UCX_TLS and UCX_NET_DEVICES.

    An empty one leaves the choice to UCX, or to `interface`. `send_segment` and `receive_segment`
    (bytes) are its buffers for TCP; its own, of 8 KiB, make reads several times slower. A thread
    moves bytes when a socket is ready, and looks by itself every `progress_interval` seconds, for
    transports that wake nobody; 0 has it look all the time, which takes a core. `threads` means
    nothing here.
    """

    backend: str = "UCX"
    transports: str = "tcp"
    net_devices: str = ""
    send_segment: int = 256 << 10
    receive_segment: int = 512 << 10
    progress_interval: float = 0.001

    def __post_init__(self) -> None:
        PullSettings.__post_init__(self)
        if self.progress_interval < 0:
            raise ValueError("progress_interval must not be negative")

    @property
    def environment(self) -> dict[str, str]:
        """What UCX is told."""
        return {
            "UCX_TLS": self.transports,
            "UCX_NET_DEVICES": self.net_devices or self.interface,
            "UCX_TCP_TX_SEG_SIZE": str(self.send_segment),
            "UCX_TCP_RX_SEG_SIZE": str(self.receive_segment),
            # Its own locks spin, which is worst when there are more threads than cores.
            "UCX_USE_MT_MUTEX": "y",
            # The libraries of this module can crash the process at its end.
            "UCX_MODULES": "^ib" if self.transports == "tcp" else "",
        }


class NixlEngine(PullEngine):
    """One agent, which knows the others by their metadata."""

    name = "nixl"
    kind = EngineKind.PEER
    devices = frozenset({"cpu"})  # versions are in host memory
    package = "nixl"
    settings_type = NixlSettings

    def _start(self, role: Role) -> dict[str, Any]:
        settings = self.settings_as(NixlSettings)
        if self.member is None:
            raise RuntimeError("the engine is not open")
        for name, value in settings.environment.items():
            if value:
                os.environ.setdefault(name, value)
        self.agent = Agent(
            _name(self.member),
            backend=settings.backend,
            progress_seconds=settings.progress_interval,
        )
        self._meeting = threading.Lock()
        self._known: dict[str, str] = {}  # agents by name, and their metadata
        self._reading: Counter[str] = Counter()
        self._lost: set[str] = set()
        return super()._start(role)

    def _make(
        self, *, group: str, session: SessionId, seats: Sequence[Seat], rank: int
    ) -> "NixlSession":
        return NixlSession(group=group, session=session, seats=seats, rank=rank, engine=self)

    def _register(self, address: int, nbytes: int) -> object:
        return self.agent.register(address, nbytes)

    def _unregister(self, handle: object, address: int) -> None:  # noqa: ARG002
        try:
            self.agent.unregister(handle)
        except ERRORS as error:
            raise RuntimeError(str(error)) from error

    def _describe(self) -> dict[str, Any]:
        return {"agent": self.agent.name, "metadata": b64encode(self.agent.metadata()).decode()}

    @property
    def known(self) -> frozenset[str]:
        """Names of the agents that NIXL knows."""
        with self._meeting:
            return frozenset(self._known)

    def reach(self, source: dict[str, Any]) -> object:
        """Know the agent by its newest metadata, which tells of all its registered memory."""
        name, metadata = str(source["agent"]), str(source["metadata"])
        with self._meeting:
            if self._known.get(name) != metadata or name in self._lost:
                self._part(name)
                self.agent.meet(b64decode(metadata))  # adds to what it knows
                self._known[name] = metadata
        return name

    def _keep(self, members: AbstractSet[MemberId]) -> None:
        with self._meeting:
            for name in self._known.keys() - {_name(member) for member in members}:
                self._part(name)

    def _part(self, name: str) -> None:
        """Disconnect, but from whom something is being read, in another session maybe."""
        if name in self._known and not self._reading[name]:
            self.agent.forget(name)
            del self._known[name]
            self._lost.discard(name)

    def read(self, peer: object, *, remote: int, local: int, nbytes: int) -> Read:
        name = str(peer)
        with self._meeting:
            self._reading[name] += 1
        try:
            handle = self.agent.read(name, remote=remote, local=local, nbytes=nbytes)
        except ERRORS:
            self.read_ended(name, failed=True)
            raise
        return _Transfer(self, handle, name)

    def read_ended(self, name: str, *, failed: bool) -> None:
        """A connection that has failed does not come back: the agent is met anew."""
        with self._meeting:
            self._reading[name] -= 1
            if not self._reading[name]:
                del self._reading[name]
            if failed and name in self._known:
                self._lost.add(name)


def _name(member: MemberId) -> str:
    return f"{member.pod_uid}/{member.boot_id}"


class NixlSession(PullSession):
    """The library's errors derive from Exception alone."""

    _faults = (RuntimeError, *ERRORS)


class _Transfer(Read):
    def __init__(self, engine: NixlEngine, handle: int, peer: str) -> None:
        self._engine, self._handle, self._peer = engine, handle, peer
        self._done = False

    def done(self) -> bool:
        state = self._engine.agent.state(self._handle)
        if state is State.FAILED:
            raise RuntimeError(f"a read from {self._peer} failed")
        self._done = state is State.DONE
        return self._done

    def release(self) -> None:
        self._engine.read_ended(self._peer, failed=not self._done)
        self._engine.agent.release(self._handle)
