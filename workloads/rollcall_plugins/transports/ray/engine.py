"""Ray's collectives (`ray.util.collective`, with gloo), with which frameworks on Ray send weights.

The baseline that the other engines replace. Of Ray's runtime it needs the GCS alone, through which
the ranks of a group find each other: the sender hosts one, without dashboard and usage reports, or
all use the GCS of an existing Ray cluster. Each session has a group of its own, in a child process
that its abort kills, because Ray builds groups on torch.distributed's default world and does not
bound its operations. Pieces are copied to and from memory that is shared with the child.

What Ray decides: its GCS and the store of a group's rank 0 listen on all interfaces. The sender's
GCS requires a token, which only members of a session receive; that store requires none, so protect
the job's pods with a NetworkPolicy. Data goes between the members' addresses. IPv4 only. With GPUs
too the weights go through host memory: Ray's NCCL groups need CuPy and a whole Ray node in each
pod, and are not used. Besides Ray's public functions this uses private ones, so try a release of
Ray other than the one in pyproject.toml before using it.
"""

import ipaddress
import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from rollcall_plugins.transports.ray.fork_server import (
    ForkServer,
    ForkServerConfig,
    RayProcess,
    interface_of,
)
from rollcall_protocol.wire.ids import SessionId
from rollcall_protocol.wire.messages import Seat
from rollcall_runtime.sync.engine import EngineKind, Role, SyncSettings
from rollcall_runtime.sync.engines.common.library_process import LibraryProcessError
from rollcall_runtime.sync.engines.common.library_process_session import LibraryProcessSession
from rollcall_runtime.sync.engines.common.threaded_engine import ThreadedEngine, seconds_left
from rollcall_runtime.sync.errors import JoinFailedError
from rollcall_runtime.sync.rendezvous import SessionRendezvous

_CLOSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class RaySettings(SyncSettings):
    """`address` is the GCS (host:port) of a Ray cluster to use; empty: the sender hosts one.

    That one listens at `port` (0: any that is free) and writes to a folder of its own in `folder`
    (empty: the temporary one), removed at the end. An existing cluster is reached with Ray's own
    environment variables, such as RAY_AUTH_MODE and RAY_AUTH_TOKEN. The GCS must start within
    `start_seconds`. `in_flight` slots of `operation_bytes` are in shared memory, for each session;
    `threads` has no effect.
    """

    address: str = ""
    port: int = 0
    folder: str = ""
    start_seconds: float = 60.0

    def __post_init__(self) -> None:
        SyncSettings.__post_init__(self)
        if self.address and not self.address.rpartition(":")[2].isdecimal():
            raise ValueError("address must be the GCS of a Ray cluster, as host:port")
        if not 0 <= self.port < 1 << 16:
            raise ValueError("port must be from 0 to 65535")
        if self.start_seconds <= 0:
            raise ValueError("startSeconds must be positive")


class RayEngine(ThreadedEngine):
    """Broadcast by Ray between host buffers."""

    name = "ray"
    kind = EngineKind.GROUP
    devices = frozenset({"cpu"})
    library = "ray"
    settings_type = RaySettings

    @classmethod
    def require_library(cls) -> None:
        """ModuleNotFoundError if Ray is not installed; it is not imported."""
        # Not imported here: Ray changes the process's logging and import path.
        if find_spec("ray") is None:
            raise ModuleNotFoundError("No module named 'ray'", name="ray")

    def __init__(self) -> None:
        super().__init__()
        self._config: ForkServerConfig | None = None
        self._fork_server: ForkServer | None = None
        self._fork_server_lock = threading.Lock()

    @property
    def _own(self) -> RaySettings:
        return self.settings_as(RaySettings)

    def _open_transport(self, role: Role) -> dict[str, Any]:
        if ipaddress.ip_address(self.address).version != 4:
            raise RuntimeError(f"ray.util.collective cannot use {self.address}: IPv4 only")
        settings = self._own
        host = role is Role.SENDER and not settings.address
        self._config = ForkServerConfig(
            address=self.address,
            interface=interface_of(self.address),
            slots=settings.in_flight,
            slot_bytes=settings.operation_bytes,
            host=host,
            port=settings.port,
            token=secrets.token_hex(16) if host else "",
            folder=settings.folder,
            seconds=settings.start_seconds,
        )
        self._fork_server = self._start_fork_server(self._config)
        return {}

    def start_process(self) -> RayProcess:
        """A child without a group, whose first answer is due; LibraryProcessError."""
        with self._fork_server_lock:
            if self._fork_server is not None:
                try:
                    return self._fork(self._fork_server)
                except LibraryProcessError:
                    self._fork_server.close()
            self._fork_server = None  # also if no other can be started now
            if self._config is not None:
                self._fork_server = self._start_fork_server(self._config)
            if self._fork_server is None or self._config is None:
                raise LibraryProcessError("the engine is closed")
            return self._fork(self._fork_server)

    def _fork(self, server: ForkServer) -> RayProcess:
        settings = self.settings
        return RayProcess(server, slots=settings.in_flight, slot_bytes=settings.operation_bytes)

    def _start_fork_server(self, config: ForkServerConfig) -> ForkServer:
        # The GCS of an existing cluster may require no token.
        environment = {} if self._own.address else {"RAY_AUTH_MODE": "token"}
        return ForkServer(config, environment=environment)

    def _new_session(
        self, *, group: str, session: SessionId, seats: Sequence[Seat], rank: int
    ) -> "RaySession":
        return RaySession(
            group=group,
            session=session,
            seats=seats,
            rank=rank,
            engine=self,
            address=self._own.address,
        )

    def _close_transport(self) -> None:
        self._config = None
        # A stuck session may be starting a fork server, which exits with this process too.
        if self._fork_server_lock.acquire(timeout=_CLOSE_SECONDS):
            server, self._fork_server = self._fork_server, None
            self._fork_server_lock.release()
            if server is not None:
                server.close()


class RaySession(LibraryProcessSession[RayProcess]):
    """One collective group; `address` is that of a GCS that is not the sender's."""

    def __init__(
        self,
        *,
        group: str,
        session: SessionId,
        seats: Sequence[Seat],
        rank: int,
        engine: RayEngine,
        address: str,
    ) -> None:
        super().__init__(group=group, session=session, seats=seats, rank=rank, engine=engine)
        self._ray_engine, self._gcs_address = engine, address

    def _connect(self, rendezvous: SessionRendezvous, deadline: float) -> None:
        try:
            process = self._process = self._ray_engine.start_process()
            self._wait_for_answer(deadline)
            gcs, token = self._gcs_address, ""
            if not gcs:
                # Stored now, not when the engine was opened: a dead GCS may have been replaced.
                if self.rank == 0:
                    rendezvous.put("gcs", f"{process.gcs} {process.token}".encode())
                gcs, token = rendezvous.get("gcs").decode().split()
            process.call(
                "join",
                gcs=gcs,
                token=token,
                group=self.name,
                size=len(self.seats),
                rank=self.rank,
                seconds=seconds_left(deadline, doing="to join"),
            )
            self._wait_for_answer(deadline)
        except LibraryProcessError as error:
            raise JoinFailedError(f"{self.name}: {error}") from error
