"""Mooncake's TransferEngine: one-sided reads between registered buffers, over TCP or RDMA.

Peers find each other without a metadata server (its P2PHANDSHAKE). Over TCP the library listens on
all interfaces and asks nobody who they are: keep it behind a NetworkPolicy. A transfer cannot be
cancelled; one whose source is stopped ends when that process does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mooncake.engine import TransferEngine

from rollcall_protocol.wire.ids import SessionId
from rollcall_protocol.wire.messages import Seat
from rollcall_runtime.sync.engine import EngineKind, Role
from rollcall_runtime.sync.engines.pull.engine import PullEngine, PullSettings
from rollcall_runtime.sync.engines.pull.pending_reads import Read
from rollcall_runtime.sync.engines.pull.session import PullSession

_COMPLETED = 1


@dataclass(frozen=True, slots=True)
class MooncakeSettings(PullSettings):
    """`protocol` is tcp or rdma, `device_name` which RDMA devices to use (all if empty)."""

    protocol: str = "tcp"
    device_name: str = ""


class MooncakeEngine(PullEngine):
    """One TransferEngine, which is made when the engine is opened."""

    name = "mooncake"
    kind = EngineKind.PEER
    devices = frozenset({"cpu"})  # versions are in host memory
    package = "mooncake-transfer-engine-non-cuda"
    settings_type = MooncakeSettings

    def _start(self, role: Role) -> dict[str, Any]:
        self._transfers = self._make_transfers(self.settings_as(MooncakeSettings))
        return super()._start(role)

    def _make_transfers(self, settings: MooncakeSettings) -> Any:
        """A TransferEngine that listens; RuntimeError."""
        transfers = TransferEngine()
        status = transfers.initialize(
            self.address, "P2PHANDSHAKE", settings.protocol, settings.device_name
        )
        if status:
            raise RuntimeError(
                f"Mooncake's TransferEngine did not start with protocol {settings.protocol!r} "
                f"on {self.address} (status {status})"
            )
        return transfers

    def _make(
        self, *, group: str, session: SessionId, seats: Sequence[Seat], rank: int
    ) -> PullSession:
        return PullSession(group=group, session=session, seats=seats, rank=rank, engine=self)

    def _register(self, address: int, nbytes: int) -> object:
        if self._transfers.register_memory(address, nbytes):
            raise RuntimeError(f"Mooncake cannot register {nbytes} bytes of memory")
        return None

    def _unregister(self, handle: object, address: int) -> None:  # noqa: ARG002
        self._transfers.unregister_memory(address)

    def _describe(self) -> dict[str, Any]:
        return {"segment": f"{self.address}:{self._transfers.get_rpc_port()}"}

    def reach(self, source: dict[str, Any]) -> object:
        return str(source["segment"])

    def read(self, peer: object, *, remote: int, local: int, nbytes: int) -> Read:
        batch = self._transfers.batch_transfer_async_read(peer, [local], [remote], [nbytes])
        if not batch:
            raise RuntimeError(f"Mooncake cannot read from {peer}")
        return _Batch(self._transfers, batch, str(peer))


class _Batch(Read):
    def __init__(self, transfers: Any, batch: int, peer: str) -> None:
        self._transfers, self._batch, self._peer = transfers, batch, peer

    def done(self) -> bool:
        status = self._transfers.transfer_check_status(self._batch)
        if status < 0:
            raise RuntimeError(f"a read from {self._peer} failed (status {status})")
        return bool(status == _COMPLETED)
