"""NIXL: one-sided reads between registered buffers, through UCX (TCP, RDMA) or another backend.

NIXL brings a UCX of its own, which cannot live beside another one in a process: where PyTorch links
one (Debian's does, through its MPI) the engine says that it is not available.

UCX reads its own settings from the environment when the engine is opened; what is already set there
wins over the job's. It notices a dead peer within tenths of a second, and waits for a stopped one
for ever, so reads are looked at and given up here.
"""

import os
import re
import threading
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch  # noqa: F401 - first, for what it links

from rollcall_protocol.ids import SessionId
from rollcall_protocol.messages import Seat
from rollcall_runtime.sync.engine import EngineKind, Role
from rollcall_runtime.sync.pull import PullEngine, PullSession, PullSettings, Read

_foreign = re.search(r"/\S*/libucs\.so\S*", Path("/proc/self/maps").read_text())
if _foreign:
    raise ImportError(
        f"this process has a UCX already ({_foreign[0]}), beside which NIXL's own would abort it; "
        "use a PyTorch that does not link UCX"
    )

from nixl import _bindings as nixl_bindings  # noqa: E402
from nixl._api import nixl_agent, nixl_agent_config, nixl_thread_sync_t  # noqa: E402

_MEMORY = "DRAM"
_BUSY = "PROC"
_ERRORS = tuple(
    found
    for name, found in vars(nixl_bindings).items()
    if name.endswith("Error") and isinstance(found, type) and issubclass(found, Exception)
)


@dataclass(frozen=True, slots=True)
class NixlSettings(PullSettings):
    """`backend` is NIXL's plugin. `transports` and `net_devices` are UCX_TLS and UCX_NET_DEVICES.

    An empty one leaves the choice to UCX, or to `interface`. `send_segment` and `receive_segment`
    (bytes) are its buffers for TCP; its own, of 8 KiB, make reads several times slower.
    """

    backend: str = "UCX"
    transports: str = "tcp"
    net_devices: str = ""
    send_segment: int = 256 << 10
    receive_segment: int = 512 << 10


class NixlEngine(PullEngine):
    """One agent, which knows the others by their metadata."""

    name = "nixl"
    kind = EngineKind.PEER
    devices = frozenset({"cpu"})  # versions are in host memory
    package = "nixl"
    settings_type = NixlSettings

    def _start(self, role: Role) -> dict[str, Any]:
        settings = self.settings
        if not isinstance(settings, NixlSettings) or self.member is None:
            raise TypeError(f"{type(settings).__name__} are not settings of nixl")
        for name, value in (
            ("UCX_TLS", settings.transports),
            ("UCX_NET_DEVICES", settings.net_devices or settings.interface),
            ("UCX_TCP_TX_SEG_SIZE", str(settings.send_segment)),
            ("UCX_TCP_RX_SEG_SIZE", str(settings.receive_segment)),
        ):  # fmt: skip
            if value:
                os.environ.setdefault(name, value)
        config = nixl_agent_config(
            backends=[settings.backend], num_threads=settings.threads,
            sync_mode=nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT,  # sessions have their own threads
        )  # fmt: skip
        self._agent = nixl_agent(f"{self.member.pod_uid}/{self.member.boot_id}", config)
        self._lock = threading.Lock()
        self._known: dict[str, str] = {}  # agents by name, and their metadata
        return super()._start(role)

    def _make(
        self, *, group: str, session: SessionId, seats: Sequence[Seat], rank: int
    ) -> "NixlSession":
        return NixlSession(group=group, session=session, seats=seats, rank=rank, engine=self)

    def _register(self, address: int, nbytes: int) -> object:
        return self._agent.register_memory([(address, nbytes, 0, "")], _MEMORY)

    def _unregister(self, handle: object, address: int) -> None:  # noqa: ARG002
        self._agent.deregister_memory(handle)

    def _describe(self) -> dict[str, Any]:
        metadata = b64encode(self._agent.get_agent_metadata()).decode()
        return {"agent": self._agent.name, "metadata": metadata}

    def reach(self, source: dict[str, Any]) -> object:
        """Know the agent by its newest metadata, which tells of all its registered memory."""
        name, metadata = str(source["agent"]), str(source["metadata"])
        with self._lock:
            if self._known.get(name) != metadata:
                if self._known.pop(name, None) is not None:
                    self._agent.remove_remote_agent(name)
                self._agent.add_remote_agent(b64decode(metadata))
                self._known[name] = metadata
        return name

    def read(self, peer: object, *, remote: int, local: int, nbytes: int) -> Read:
        agent = self._agent
        there = agent.get_xfer_descs([(remote, nbytes, 0)], _MEMORY)
        here = agent.get_xfer_descs([(local, nbytes, 0)], _MEMORY)
        handle = agent.initialize_xfer("READ", here, there, peer)
        return _Transfer(self, handle, agent.transfer(handle), str(peer))


class NixlSession(PullSession):
    """The library's errors derive from Exception alone."""

    _faults = (RuntimeError, *_ERRORS)


class _Transfer(Read):
    def __init__(self, engine: NixlEngine, handle: Any, state: str, peer: str) -> None:
        self._engine, self._handle, self._state, self._peer = engine, handle, state, peer

    def done(self) -> bool:
        if self._state == _BUSY:
            self._state = self._engine._agent.check_xfer_state(self._handle)  # noqa: SLF001
        if self._state not in {_BUSY, "DONE"}:
            raise RuntimeError(f"a read from {self._peer} failed ({self._state})")
        return self._state == "DONE"

    def release(self) -> None:
        self._engine._agent.release_xfer_handle(self._handle)  # noqa: SLF001
