"""checkpoint-engine's way: one copy of the weights to each node, then a broadcast in it.

The sender's weights lie in host memory that checkpoint-engine's P2PStore has registered. The leader
of each node, the receiver of the lowest rank, reads them operation by operation, as
checkpoint-engine plans its buckets, and passes each on to the node's other receivers by gloo while
the next ones fly. Every receiver compares the checksums itself.

Its ParameterServer is not used: it wants GPUs, a world that never changes and torch's default
process group. So reads can be given up (`checkpoint_store` says how), and the node's broadcast is
one of `gloo`, of which holds: it cannot be cancelled, and ends at the operation's timeout.

On CUDA and NPU workers checkpoint-engine's own DeviceManager chooses protocol and devices unless
the settings do. That was never run.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from rollcall_protocol.wire.ids import SessionId
from rollcall_protocol.wire.messages import Seat
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.bucket_transfer import Work, drain
from rollcall_runtime.sync.engine import EngineKind, Role, decode_descriptor
from rollcall_runtime.sync.engines.gloo import SEND_BUFFER_BYTES, broadcast, explain, make_group
from rollcall_runtime.sync.engines.kimi.p2p_store import HostStore, devices
from rollcall_runtime.sync.engines.kimi.transfer_plan import PlannedMover, plan
from rollcall_runtime.sync.engines.mooncake import MooncakeEngine, MooncakeSettings
from rollcall_runtime.sync.engines.pull.bucket_reader import Reader
from rollcall_runtime.sync.engines.pull.session import PullSession
from rollcall_runtime.sync.engines.pull.topology import Topology
from rollcall_runtime.sync.errors import JoinFailedError, SyncError, TransferFailedError
from rollcall_runtime.sync.memory.buffers import Buffer, Pin
from rollcall_runtime.sync.registry import worker_device
from rollcall_runtime.sync.rendezvous import Rendezvous

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # of the machine, in containers too


class NodeIdentity(StrEnum):
    """What the receivers of one node have in common."""

    BOOT = "boot"
    HOSTNAME = "hostname"
    ADDRESS = "address"


@dataclass(frozen=True, slots=True)
class KimiSettings(MooncakeSettings):
    """`node_of` is boot (the machine's boot id), hostname or address.

    `protocol` is Mooncake's; auto is tcp on CPUs, and what checkpoint-engine chooses elsewhere,
    which then chooses the devices too. `topology` must stay auto: nodes decide who reads from whom.
    `send_buffer_bytes` is gloo's, for the broadcast in a node.
    """

    protocol: str = "auto"
    node_of: str = NodeIdentity.BOOT.value
    send_buffer_bytes: int = SEND_BUFFER_BYTES

    def __post_init__(self) -> None:
        MooncakeSettings.__post_init__(self)
        if self.node_of not in set(NodeIdentity):
            raise ValueError(f"node_of must be one of {', '.join(NodeIdentity)}")
        if self.topology != Topology.AUTO:
            raise ValueError("topology must be auto: nodes decide who reads from whom")
        if self.send_buffer_bytes < 0:
            raise ValueError("send_buffer_bytes must not be negative")


class KimiEngine(MooncakeEngine):
    """A P2PStore, and what tells this process's node."""

    name = "kimi"
    kind = EngineKind.GROUP
    package = "checkpoint-engine"
    settings_type = KimiSettings
    selective = False  # a node's receivers share one broadcast

    def _start(self, role: Role) -> dict[str, Any]:
        settings = self.settings_as(KimiSettings)
        node = node_of(NodeIdentity(settings.node_of), self.address)
        return super()._start(role) | {"node": node}

    def _make_transfers(self, settings: MooncakeSettings) -> Any:
        manager = devices(worker_device(), protocol=settings.protocol, names=settings.device_name)
        self.store = HostStore(self.address, manager)
        return self.store.transfers

    def _register(self, address: int, nbytes: int) -> object:
        return self.store.register(address, nbytes)

    def _unregister(self, handle: object, address: int) -> None:  # noqa: ARG002
        self.store.unregister(str(handle))

    def _describe(self) -> dict[str, Any]:
        return {"segment": self.store.address}

    def _make(
        self, *, group: str, session: SessionId, seats: Sequence[Seat], rank: int
    ) -> "KimiSession":
        return KimiSession(group=group, session=session, seats=seats, rank=rank, engine=self)


class KimiSession(PullSession):
    """A reader at each node's leader, and the node's process group."""

    def __init__(
        self,
        *,
        group: str,
        session: SessionId,
        seats: Sequence[Seat],
        rank: int,
        engine: KimiEngine,
    ) -> None:
        super().__init__(group=group, session=session, seats=seats, rank=rank, engine=engine)
        self._nodes: tuple[tuple[int, ...], ...] = ()
        self._node: tuple[int, ...] = (rank,)  # the first one leads
        self._group: Any = None
        self._store: Any = None
        self._passing: list[tuple[Work, Pin]] = []

    def _connect(self, rendezvous: Rendezvous, deadline: float) -> None:  # noqa: ARG002
        self._nodes = nodes(self.seats)
        if self.rank == 0:
            return
        self._node = next(node for node in self._nodes if self.rank in node)
        if len(self._node) == 1:
            return
        settings = self.engine.settings_as(KimiSettings)
        try:
            self._group, self._store = make_group(
                rendezvous,
                address=self.engine.address,
                settings=settings,
                send_buffer_bytes=settings.send_buffer_bytes,
                rank=self._node.index(self.rank),
                size=len(self._node),
                prefix=f"node/{self._node[0]}/",
            )
        except RuntimeError as error:
            cause = explain(self.name, error, [self.seats[rank] for rank in self._node])
            raise JoinFailedError(str(cause), peer=cause.peer) from error

    def _readers(self) -> Sequence[int]:
        return [node[0] for node in self._nodes]

    def _take(self, buffer: Buffer, manifest: WeightManifest, deadline: float) -> None:
        number = self._next(deadline)
        told = self._await_source(number, manifest, deadline)
        planned = plan(
            manifest, operation_bytes=self.settings.operation_bytes, receivers=self._node
        )
        start, landed = self._receive, self._landed
        with buffer.pin():
            if planned.reader == self.rank:
                self.pulls.source(buffer)
                self.source = self.seats[0].member
                reader = Reader(
                    self, number=number, source=0, told=told, buffer=buffer, manifest=manifest
                )
                landed = reader.landed

                def start(chunk: memoryview, seconds: float) -> Work:
                    return _Passed(self, reader.start(chunk, seconds), chunk, buffer)

            self._mover = mover = PlannedMover(
                start=start, stop=self._check, settings=self.settings, landed=landed
            )
            mover.take(buffer, manifest, planned, deadline)
            self.source = None
            self._await_passed(0)
            self._mover = None  # all has ended; it leads back here, which would keep the buffer

    def pass_on(self, chunk: memoryview, buffer: Buffer) -> None:
        """Begin to give the node's others what was read; a few at a time are under way."""
        if self._group is not None:
            self._await_passed(self.settings.in_flight - 1)
            work = self._receive(chunk, self.settings.operation_timeout)
            self._passing.append((work, buffer.pin()))

    def _await_passed(self, left: int) -> None:
        while len(self._passing) > left:
            self._check()
            self._passing[0][0].wait()
            self._passing.pop(0)[1].release()

    def _receive(self, chunk: memoryview, seconds: float) -> Work:
        if self._group is None:
            raise TransferFailedError(f"{self.name} was not joined")
        return _Cast(broadcast(self._group, chunk, seconds))

    def _explain(self, error: Exception) -> SyncError:
        if isinstance(error, _CastError):
            return explain(self.name, error, [self.seats[rank] for rank in self._node])
        return super()._explain(error)

    def _disconnect(self) -> None:
        super()._disconnect()
        drain(self._passing)
        self._group = None  # would block while an operation is in flight; none is left
        self._store = None


class _CastError(RuntimeError):
    """What gloo says: the sender is not to blame."""


class _Cast:
    """A broadcast in the node."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def wait(self) -> None:
        try:
            self._work.wait()
        except RuntimeError as error:
            raise _CastError(str(error)) from error


class _Passed:
    """A leader's read, passed on when it has ended."""

    def __init__(self, session: KimiSession, read: Work, chunk: memoryview, buffer: Buffer) -> None:
        self._session, self._read, self._chunk, self._buffer = session, read, chunk, buffer

    def wait(self) -> None:
        self._read.wait()
        if not self._session.aborted:
            self._session.pass_on(self._chunk, self._buffer)


def node_of(what: NodeIdentity, address: str) -> str:
    """What tells this process's node; OSError where the system has no boot id."""
    if what is NodeIdentity.ADDRESS:
        return address
    return socket.gethostname() if what is NodeIdentity.HOSTNAME else _BOOT_ID.read_text().strip()


def nodes(seats: Sequence[Seat]) -> tuple[tuple[int, ...], ...]:
    """The receivers' ranks (the sender, 0, is none) by node, each node's in order."""
    found: dict[str, list[int]] = {}
    for rank, seat in enumerate(seats[1:], start=1):
        node = decode_descriptor(seat).get("node")
        if not isinstance(node, str):
            raise JoinFailedError("its descriptor does not tell its node", peer=seat.member)
        found.setdefault(node, []).append(rank)
    return tuple(tuple(ranks) for ranks in found.values())
