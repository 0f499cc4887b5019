"""Mooncake's TransferEngine: one-sided reads between registered buffers, over TCP or RDMA.

How it reads, and what it does to registered memory, is in `mooncake_reads`.
"""

from collections.abc import Sequence
from typing import Any

from rollcall_protocol.wire.addresses import host_port
from rollcall_protocol.wire.ids import SessionId
from rollcall_protocol.wire.messages import Seat
from rollcall_runtime.sync.engine import EngineKind
from rollcall_runtime.sync.engines.pull.mooncake_reads import (
    MooncakeReads,
    MooncakeSettings,
    choose_address_family,
    require_address_family,
    require_rdma_devices,
)
from rollcall_runtime.sync.engines.pull.peer_read_session import PullSession


class MooncakeEngine(MooncakeReads):
    """One TransferEngine, which starts when the engine is opened."""

    name = "mooncake"
    kind = EngineKind.PEER
    library = "mooncake"
    settings_type = MooncakeSettings

    @classmethod
    def require_library(cls) -> None:
        """ImportError if Mooncake's TransferEngine cannot be imported."""
        _transfer_engine()

    def _make_transfers(self, settings: MooncakeSettings) -> Any:
        """A TransferEngine that listens. Raises RuntimeError, and ValueError without a device."""
        require_rdma_devices(settings.protocol, settings.device_name)
        require_address_family(self.address)
        self._over_tcp = settings.protocol == "tcp"
        transfers = _transfer_engine()()
        status = transfers.initialize(
            self.address, "P2PHANDSHAKE", settings.protocol, settings.device_name
        )
        if status:
            raise RuntimeError(
                f"Mooncake's TransferEngine did not start with protocol {settings.protocol!r} "
                f"on {self.address} (status {status})"
            )
        return transfers

    def _new_session(
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
        return {"segment": host_port(self.address, self._transfers.get_rpc_port())}


def _transfer_engine() -> Any:
    """The library's class."""
    choose_address_family()
    from mooncake.engine import TransferEngine  # noqa: PLC0415

    return TransferEngine
