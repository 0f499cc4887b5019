"""NIXL: one-sided reads between registered buffers, through UCX (TCP, RDMA) or another backend.

NIXL's wheel contains a UCX, which aborts the process if it resolves symbols of another UCX: where
PyTorch has loaded one for the whole process (Debian's does, through its MPI; the CPU image avoids
that) the engine reports that it is not available.

UCX reads its settings from the environment when the engine is opened; variables that are already
set take precedence over the job's settings. UCX notices a dead peer within tenths of a second, and
waits for a stopped one for ever, so reads are polled and abandoned here.
"""

import os
import threading
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch  # noqa: F401 - first, for what it links

from rollcall_protocol.wire.ids import MemberId, SessionId
from rollcall_protocol.wire.messages import Seat
from rollcall_runtime.sync.engine import EngineKind, Role
from rollcall_runtime.sync.engines.pull.engine import PullEngine, PullSettings
from rollcall_runtime.sync.engines.pull.peer_read_session import PullSession
from rollcall_runtime.sync.engines.pull.pending_reads import LibraryRead

if TYPE_CHECKING:
    from types import ModuleType

    from rollcall_plugins.transports.nixl.agent import NixlAgent


@dataclass(frozen=True, slots=True)
class NixlSettings(PullSettings):
    """`backend` is NIXL's plugin. `transports` and `net_devices` are UCX_TLS and UCX_NET_DEVICES.

    An empty one leaves the choice to UCX, or to `interface`. `send_segment` and `receive_segment`
    (bytes) are UCX's buffers for TCP; its defaults, of 8 KiB, make reads several times slower. A
    thread moves bytes when a socket is ready, and polls every `progress_interval` seconds, for
    transports that signal nothing; 0 polls all the time, which takes a core. `threads` has no
    effect.
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
        """The environment variables that UCX reads."""
        return {
            "UCX_TLS": self.transports,
            "UCX_NET_DEVICES": self.net_devices or self.interface,
            "UCX_TCP_TX_SEG_SIZE": str(self.send_segment),
            "UCX_TCP_RX_SEG_SIZE": str(self.receive_segment),
            # Its default locks spin, which is slow with more threads than cores.
            "UCX_USE_MT_MUTEX": "y",
            # The libraries of this module can crash the process at exit.
            "UCX_MODULES": "^ib" if self.transports == "tcp" else "",
        }


class NixlEngine(PullEngine):
    """One agent, which connects to the others by their metadata."""

    name = "nixl"
    kind = EngineKind.PEER
    devices = frozenset({"cpu"})  # versions are in host memory
    library = "nixl"
    keeps_registered = True  # each registration changes the agent's metadata: peers connect again
    settings_type = NixlSettings

    @classmethod
    def require_library(cls) -> None:
        """ImportError if NIXL cannot be imported."""
        _use_nixl()

    def _open_transport(self, role: Role) -> dict[str, Any]:
        settings = self.settings_as(NixlSettings)
        if self.member is None:
            raise RuntimeError("the engine is not open")
        for name, value in settings.environment.items():
            if value:
                os.environ.setdefault(name, value)
        nixl_agent, _ = _use_nixl()
        self.agent: NixlAgent = nixl_agent.NixlAgent(
            _name(self.member),
            backend=settings.backend,
            progress_seconds=settings.progress_interval,
        )
        self._connecting = threading.Lock()
        self._connected: dict[str, str] = {}  # agents' metadata by their names
        self._reading: Counter[str] = Counter()
        self._failed: set[str] = set()
        return super()._open_transport(role)

    def _new_session(
        self, *, group: str, session: SessionId, seats: Sequence[Seat], rank: int
    ) -> PullSession:
        _, nixl_session = _use_nixl()
        made: PullSession = nixl_session.NixlSession(
            group=group, session=session, seats=seats, rank=rank, engine=self
        )
        return made

    def _register(self, address: int, nbytes: int) -> object:
        return self.agent.register(address, nbytes)

    def _unregister(self, handle: object, address: int) -> None:  # noqa: ARG002
        try:
            self.agent.unregister(handle)
        except self.agent.errors as error:
            raise RuntimeError(str(error)) from error

    def _describe(self) -> dict[str, Any]:
        return {"agent": self.agent.name, "metadata": b64encode(self.agent.metadata()).decode()}

    @property
    def connected(self) -> frozenset[str]:
        """Names of the agents that this one is connected to."""
        with self._connecting:
            return frozenset(self._connected)

    def connect(self, source: dict[str, Any]) -> object:
        """Connect with the agent's newest metadata, which lists all its registered memory."""
        name, metadata = str(source["agent"]), str(source["metadata"])
        with self._connecting:
            if self._connected.get(name) != metadata or name in self._failed:
                self._disconnect(name)
                self.agent.add_peer(b64decode(metadata))  # adds to what is known of the agent
                self._connected[name] = metadata
        return name

    def _keep_peers(self, members: AbstractSet[MemberId]) -> None:
        with self._connecting:
            for name in self._connected.keys() - {_name(member) for member in members}:
                self._disconnect(name)

    def _disconnect(self, name: str) -> None:
        """Disconnect, unless a read from the agent is in flight, perhaps in another session."""
        if name in self._connected and not self._reading[name]:
            self.agent.remove_peer(name)
            del self._connected[name]
            self._failed.discard(name)

    def read(self, peer: object, *, remote: int, local: int, nbytes: int) -> LibraryRead:
        name = str(peer)
        with self._connecting:
            self._reading[name] += 1
        try:
            handle = self.agent.read(name, remote=remote, local=local, nbytes=nbytes)
        except self.agent.errors:
            self.read_ended(name, failed=True)
            raise
        _, nixl_session = _use_nixl()
        begun: LibraryRead = nixl_session.NixlRead(self, handle, name)
        return begun

    def read_ended(self, name: str, *, failed: bool) -> None:
        """A failed connection does not recover: the next `connect` makes a new one."""
        with self._connecting:
            self._reading[name] -= 1
            if not self._reading[name]:
                del self._reading[name]
            if failed and name in self._connected:
                self._failed.add(name)


def _name(member: MemberId) -> str:
    return f"{member.pod_uid}/{member.boot_id}"


def _use_nixl() -> "tuple[ModuleType, ModuleType]":
    """What imports NIXL, `agent` and `session`; ImportError where it cannot be used."""
    from rollcall_plugins.transports.nixl import agent, session  # noqa: PLC0415

    return agent, session
