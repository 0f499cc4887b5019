"""Ray's collectives (`ray.util.collective`, with gloo): what frameworks on Ray send weights with.

The baseline that the other engines replace. Of Ray's runtime it needs the GCS alone, through which
the ranks of a group find each other: the sender hosts one, without dashboard and usage reports, or
all use that of a Ray cluster that is there already. Each session has a group of its own, in a
process that its abort kills, because Ray builds groups on torch.distributed's default world and
does not bound its operations. Pieces are copied to and from memory that is shared with it.

What Ray decides: its GCS and the store of a group's rank 0 listen on all interfaces. The sender's
GCS asks for a token, which only members of a session get; that store asks nobody, so keep the
job's pods behind a NetworkPolicy. Data goes between the members' addresses. IPv4 only. With GPUs
too the weights go through host memory: Ray's NCCL groups need CuPy and a whole Ray node in each
pod, and are not used. Besides Ray's public functions this leans on its inner ones, so a release of
Ray other than the one in pyproject.toml has to be tried first.
"""

import ipaddress
import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from rollcall_protocol.wire.ids import SessionId
from rollcall_protocol.wire.messages import Seat
from rollcall_runtime.sync.engine import EngineKind, Role, SyncSettings
from rollcall_runtime.sync.engines.common.child_process import ProcessError
from rollcall_runtime.sync.engines.common.child_process_session import ProcessSession
from rollcall_runtime.sync.engines.common.threaded_engine import ThreadedEngine, time_left
from rollcall_runtime.sync.engines.ray.fork_server import Nest, Orders, RayOwner, interface_of
from rollcall_runtime.sync.errors import JoinFailedError
from rollcall_runtime.sync.rendezvous import Rendezvous

# Not imported here: Ray changes the process's logging and import path.
if find_spec("ray") is None:
    raise ModuleNotFoundError("No module named 'ray'", name="ray")

_CLOSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class RaySettings(SyncSettings):
    """`address` is the GCS (host:port) of a Ray cluster to use; empty: the sender hosts one.

    That one listens at `port` (0: any that is free) and writes to a folder of its own in `folder`
    (empty: the temporary one), removed at the end. For a cluster's own the variables of Ray hold,
    RAY_AUTH_MODE and RAY_AUTH_TOKEN among them. `start_seconds` bound the start. `in_flight` pieces
    of `operation_bytes` are in shared memory, for each session; `threads` means nothing to Ray.
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
    package = "ray"
    settings_type = RaySettings

    def __init__(self) -> None:
        super().__init__()
        self._orders: Orders | None = None
        self._nest: Nest | None = None
        self._hatching = threading.Lock()

    @property
    def _own(self) -> RaySettings:
        return self.settings_as(RaySettings)

    def _start(self, role: Role) -> dict[str, Any]:
        if ipaddress.ip_address(self.address).version != 4:
            raise RuntimeError(f"ray.util.collective cannot use {self.address}: IPv4 only")
        settings = self._own
        host = role is Role.SENDER and not settings.address
        self._orders = Orders(
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
        self._nest = self._hatch(self._orders)
        return {}

    def take(self) -> RayOwner:
        """A process without a group, which has yet to say that it started. ProcessError."""
        with self._hatching:
            if self._nest is not None:
                try:
                    return self._fork(self._nest)
                except ProcessError:
                    self._nest.close()
            self._nest = None  # also if no other can be had now
            if self._orders is not None:
                self._nest = self._hatch(self._orders)
            if self._nest is None or self._orders is None:
                raise ProcessError("the engine was closed")
            return self._fork(self._nest)

    def _fork(self, nest: Nest) -> RayOwner:
        settings = self.settings
        return RayOwner(nest, slots=settings.in_flight, slot_bytes=settings.operation_bytes)

    def _hatch(self, orders: Orders) -> Nest:
        # The GCS of another's cluster may ask for no token.
        environment = {} if self._own.address else {"RAY_AUTH_MODE": "token"}
        return Nest(orders, environment=environment)

    def _make(
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

    def _stop(self) -> None:
        self._orders = None
        # A session that is stuck may be starting a nest, which ends with this process too.
        if self._hatching.acquire(timeout=_CLOSE_SECONDS):
            nest, self._nest = self._nest, None
            self._hatching.release()
            if nest is not None:
                nest.close()


class RaySession(ProcessSession[RayOwner]):
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
        self._ray, self._address = engine, address

    def _connect(self, rendezvous: Rendezvous, deadline: float) -> None:
        try:
            process = self._process = self._ray.take()
            self._answer(deadline)
            gcs, token = self._address, ""
            if not gcs:
                # Told now, not when the engine was opened: a GCS that died may be another now.
                if self.rank == 0:
                    rendezvous.put("gcs", f"{process.gcs} {process.token}".encode())
                gcs, token = rendezvous.get("gcs").decode().split()
            process.ask(
                "join",
                gcs=gcs,
                token=token,
                group=self.name,
                size=len(self.seats),
                rank=self.rank,
                seconds=time_left(deadline, doing="to join"),
            )
            self._answer(deadline)
        except ProcessError as error:
            raise JoinFailedError(f"{self.name}: {error}") from error
