"""checkpoint-engine's scheme: one copy of the weights to each node, then a broadcast in the node.

The sender's weights are in host memory that checkpoint-engine's P2PStore has registered. The leader
of each node, the receiver of the lowest rank, reads them operation by operation, as
checkpoint-engine plans its buckets, and broadcasts each to the node's other receivers by gloo while
the next ones are in flight. Every receiver compares the digests itself.

Its ParameterServer is not used: it requires GPUs, a fixed world size and torch's default process
group. So reads can be abandoned (see `p2p_store`), and the node's broadcast is a `gloo` broadcast:
it cannot be cancelled, and ends at the operation's timeout.

On CUDA and NPU workers checkpoint-engine's own DeviceManager chooses protocol and devices unless
the settings do. That was never run.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollcall_protocol.wire.ids import SessionId
from rollcall_protocol.wire.messages import Seat
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.bucket_transfer import TransferHandle, drain
from rollcall_runtime.sync.engine import EngineKind, Role, decode_descriptor
from rollcall_runtime.sync.engines.gloo import (
    SEND_BUFFER_BYTES,
    broadcast,
    gloo_error,
    new_process_group,
)
from rollcall_runtime.sync.engines.pull.bucket_reader import BucketReader
from rollcall_runtime.sync.engines.pull.mooncake_reads import (
    MooncakeReads,
    MooncakeSettings,
    choose_address_family,
    require_address_family,
    require_rdma_devices,
)
from rollcall_runtime.sync.engines.pull.peer_read_session import PullSession
from rollcall_runtime.sync.engines.pull.topology import Topology
from rollcall_runtime.sync.errors import JoinFailedError, SyncError, TransferFailedError
from rollcall_runtime.sync.memory.buffers import Buffer, BufferHold
from rollcall_runtime.sync.rendezvous import SessionRendezvous
from rollcall_runtime.worker.devices import worker_device

if TYPE_CHECKING:
    from types import ModuleType

    from rollcall_plugins.transports.kimi.p2p_store import HostP2PStore

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # of the machine, in containers too


class NodeIdentity(StrEnum):
    """What identifies a node: receivers with the same value are on one node."""

    BOOT = "boot"
    HOSTNAME = "hostname"
    ADDRESS = "address"


@dataclass(frozen=True, slots=True)
class KimiSettings(MooncakeSettings):
    """`node_of` is boot (the machine's boot id), hostname or address.

    `protocol` is Mooncake's; auto is tcp on CPUs, and elsewhere what checkpoint-engine chooses,
    which then chooses the devices too. `topology` must stay auto: one receiver of each node reads
    from the sender. `send_buffer_bytes` is gloo's, for the broadcast in a node.
    """

    protocol: str = "auto"
    node_of: str = NodeIdentity.BOOT.value
    send_buffer_bytes: int = SEND_BUFFER_BYTES

    def __post_init__(self) -> None:
        MooncakeSettings.__post_init__(self)
        if self.node_of not in set(NodeIdentity):
            raise ValueError(f"node_of must be one of {', '.join(NodeIdentity)}")
        if self.topology != Topology.AUTO:
            raise ValueError(
                "topology must be auto: one receiver of each node reads from the sender"
            )
        if self.send_buffer_bytes < 0:
            raise ValueError("send_buffer_bytes must not be negative")


class KimiEngine(MooncakeReads):
    """A P2PStore, and the identity of this process's node."""

    name = "kimi"
    kind = EngineKind.GROUP
    library = "checkpoint_engine"
    settings_type = KimiSettings
    selective = False  # a node's receivers share one broadcast

    @classmethod
    def require_library(cls) -> None:
        """ImportError if checkpoint-engine cannot be imported."""
        _checkpoint_engine()

    def _open_transport(self, role: Role) -> dict[str, Any]:
        settings = self.settings_as(KimiSettings)
        node = node_of(NodeIdentity(settings.node_of), self.address)
        return super()._open_transport(role) | {"node": node}

    def _make_transfers(self, settings: MooncakeSettings) -> Any:
        p2p_store, _ = _checkpoint_engine()
        manager = p2p_store.device_manager(
            worker_device(), protocol=settings.protocol, names=settings.device_name
        )
        require_rdma_devices(manager.transfer_engine_protocol, settings.device_name)
        require_address_family(self.address)
        self._over_tcp = manager.transfer_engine_protocol == "tcp"
        self.store: HostP2PStore = p2p_store.HostP2PStore(self.address, manager)
        return self.store.transfers

    def _register(self, address: int, nbytes: int) -> object:
        return self.store.register(address, nbytes)

    def _unregister(self, handle: object, address: int) -> None:  # noqa: ARG002
        self.store.unregister(str(handle))

    def _describe(self) -> dict[str, Any]:
        return {"segment": self.store.address}

    def _new_session(
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
        self._forwarding: list[tuple[TransferHandle, BufferHold]] = []

    def _connect(self, rendezvous: SessionRendezvous, deadline: float) -> None:  # noqa: ARG002
        self._nodes = ranks_by_node(self.seats)
        if self.rank == 0:
            return
        self._node = next(node for node in self._nodes if self.rank in node)
        if len(self._node) == 1:
            return
        settings = self.engine.settings_as(KimiSettings)
        try:
            self._group, self._store = new_process_group(
                rendezvous,
                address=self.engine.address,
                settings=settings,
                send_buffer_bytes=settings.send_buffer_bytes,
                rank=self._node.index(self.rank),
                size=len(self._node),
                prefix=f"node/{self._node[0]}/",
            )
        except RuntimeError as error:
            cause = gloo_error(self.name, error, [self.seats[rank] for rank in self._node])
            raise JoinFailedError(str(cause), peer=cause.peer) from error

    def _ranks_to_wait_for(self) -> Sequence[int]:
        return [node[0] for node in self._nodes]

    def _receive(self, buffer: Buffer, manifest: WeightManifest, deadline: float) -> None:
        announcements = self._next_publication(manifest, deadline)
        source = announcements.wait_for_sender(deadline)
        _, transfer_plan = _checkpoint_engine()
        plan = transfer_plan.plan_transfer(
            manifest, operation_bytes=self.settings.operation_bytes, receivers=self._node
        )
        start, bucket_done = self._broadcast_in_node, self._trace_bucket
        leads = plan.reader == self.rank
        exposed = leads and self._pull_engine.registers_targets
        with buffer.hold(), self._checked_again(buffer, manifest, exposed=exposed):
            if leads:
                self._read_from = self.seats[0].member
                reader = BucketReader(
                    self._pull_engine,
                    self.reads,
                    announcements,
                    upstream=0,
                    peer=self._read_from,
                    source=source,
                    buffer=buffer,
                    manifest=manifest,
                    bucket_done=self._trace_bucket,
                    aborted=lambda: self.aborted,
                )
                bucket_done = reader.bucket_checked

                def start(chunk: memoryview, seconds: float) -> TransferHandle:
                    return _ForwardedRead(self, reader.start(chunk, seconds), chunk, buffer)

            self._transfer = transfer = transfer_plan.PlannedTransfer(
                start=start,
                raise_if_aborted=self._raise_if_aborted,
                settings=self.settings,
                bucket_done=bucket_done,
            )
            with self._naming(0 if leads else plan.reader):
                transfer.fill_planned(buffer, manifest, plan, deadline)
            self._read_from = None
            self._wait_for_forwarded(0)
            self._transfer = None  # it refers back to this session, which would keep the buffer

    def forward(self, chunk: memoryview, buffer: Buffer) -> None:
        """Begin to broadcast in the node what was read; `in_flight` at a time."""
        if self._group is not None:
            self._wait_for_forwarded(self.settings.in_flight - 1)
            handle = self._broadcast_in_node(chunk, self.settings.operation_timeout)
            self._forwarding.append((handle, buffer.hold()))

    def _wait_for_forwarded(self, left: int) -> None:
        while len(self._forwarding) > left:
            self._raise_if_aborted()
            self._forwarding[0][0].wait()
            self._forwarding.pop(0)[1].release()

    def _broadcast_in_node(self, chunk: memoryview, seconds: float) -> TransferHandle:
        if self._group is None:
            raise TransferFailedError(f"{self.name} was not joined")
        return _NodeBroadcast(broadcast(self._group, chunk, seconds))

    def _to_sync_error(self, error: Exception) -> SyncError:
        if isinstance(error, _NodeBroadcastError):
            return gloo_error(self.name, error, [self.seats[rank] for rank in self._node])
        return super()._to_sync_error(error)

    def _disconnect(self) -> None:
        super()._disconnect()
        drain(self._forwarding)
        self._group = None  # would block while an operation is in flight; none is left
        self._store = None


class _NodeBroadcastError(RuntimeError):
    """gloo failed in the node: the sender did not cause it."""


class _NodeBroadcast:
    """A broadcast in the node."""

    def __init__(self, handle: TransferHandle) -> None:
        self._handle = handle

    def wait(self) -> None:
        try:
            self._handle.wait()
        except RuntimeError as error:
            raise _NodeBroadcastError(str(error)) from error


class _ForwardedRead:
    """A leader's read, broadcast in the node when it has ended."""

    def __init__(
        self, session: KimiSession, read: TransferHandle, chunk: memoryview, buffer: Buffer
    ) -> None:
        self._session, self._read, self._chunk, self._buffer = session, read, chunk, buffer

    def wait(self) -> None:
        self._read.wait()
        if not self._session.aborted:
            self._session.forward(self._chunk, self._buffer)


def _checkpoint_engine() -> "tuple[ModuleType, ModuleType]":
    """What uses checkpoint-engine; ImportError without it."""
    choose_address_family()
    from rollcall_plugins.transports.kimi import p2p_store, transfer_plan  # noqa: PLC0415

    return p2p_store, transfer_plan


def node_of(what: NodeIdentity, address: str) -> str:
    """The identity of this process's node; OSError where the system has no boot id."""
    if what is NodeIdentity.ADDRESS:
        return address
    return socket.gethostname() if what is NodeIdentity.HOSTNAME else _BOOT_ID.read_text().strip()


def ranks_by_node(seats: Sequence[Seat]) -> tuple[tuple[int, ...], ...]:
    """The receivers' ranks (the sender, 0, is none of them) by node, each node's in order."""
    found: dict[str, list[int]] = {}
    for rank, seat in enumerate(seats[1:], start=1):
        node = decode_descriptor(seat).get("node")
        if not isinstance(node, str):
            raise JoinFailedError(
                "the descriptor does not name the member's node", peer=seat.member
            )
        found.setdefault(node, []).append(rank)
    return tuple(tuple(ranks) for ranks in found.values())
