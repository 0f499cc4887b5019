"""Reads through Mooncake's TransferEngine, which the engines `mooncake` and `kimi` start each in
their own way.

Peers find each other without a metadata server (its P2PHANDSHAKE). Over TCP the library listens on
all interfaces and authenticates no client, and every client can read and write registered
memory: protect it with a NetworkPolicy. So memory is registered only while peers read it; over TCP
the sender's is read-only meanwhile, and no other is registered but that of members in a chain or
tree that are read from. What was registered is compared with the digests afterwards.

A transfer cannot be cancelled; one whose source is stopped ends when that process ends.
"""

import ipaddress
import os
from abc import abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollcall_protocol import pod_contract
from rollcall_runtime.sync.engine import Role
from rollcall_runtime.sync.engines.pull.engine import PullEngine, PullSettings
from rollcall_runtime.sync.engines.pull.pending_reads import LibraryRead
from rollcall_runtime.sync.memory.buffers import FlatBuffer, HostBuffer

_USE_IPV6 = "MC_USE_IPV6"
_COMPLETED = 1
_RDMA_DEVICES = Path("/sys/class/infiniband")


@dataclass(frozen=True, slots=True)
class MooncakeSettings(PullSettings):
    """`protocol` is tcp or rdma; `device_name` lists the RDMA devices to use, all if empty."""

    protocol: str = "tcp"
    device_name: str = ""


class MooncakeReads(PullEngine):
    """One TransferEngine, which starts when the engine is opened."""

    devices = frozenset({"cpu"})  # versions are in host memory
    _over_tcp: bool

    def _open_transport(self, role: Role) -> dict[str, Any]:
        self._transfers = self._make_transfers(self.settings_as(MooncakeSettings))
        return super()._open_transport(role)

    @abstractmethod
    def _make_transfers(self, settings: MooncakeSettings) -> Any:
        """A TransferEngine that listens; sets `_over_tcp`.

        Raises RuntimeError, and ValueError without a device.
        """

    @property
    def registers_targets(self) -> bool:
        """Whether memory must be registered to read into it: with RDMA, not over TCP."""
        return not self._over_tcp

    def _protected(self, root: FlatBuffer) -> AbstractContextManager[None]:
        """RDMA registers memory for remote writes, which read-only memory does not permit."""
        if self._over_tcp and isinstance(root, HostBuffer):
            return root.write_protected()
        return nullcontext()

    def connect(self, source: dict[str, Any]) -> object:
        return str(source["segment"])

    def read(self, peer: object, *, remote: int, local: int, nbytes: int) -> LibraryRead:
        batch = self._transfers.batch_transfer_async_read(peer, [local], [remote], [nbytes])
        if not batch:
            raise RuntimeError(f"Mooncake cannot read from {peer}")
        return _MooncakeRead(self._transfers, batch, str(peer))


class _MooncakeRead(LibraryRead):
    def __init__(self, transfers: Any, batch: int, peer: str) -> None:
        self._transfers, self._batch, self._peer = transfers, batch, peer

    def done(self) -> bool:
        status = self._transfers.transfer_check_status(self._batch)
        if status < 0:
            raise RuntimeError(f"a read from {self._peer} failed (status {status})")
        return bool(status == _COMPLETED)


def choose_address_family() -> None:
    """Before Mooncake is imported: it resolves addresses of one family, and reads then which."""
    if ":" in os.environ.get(pod_contract.POD_IP, ""):
        os.environ.setdefault(_USE_IPV6, "1")


def require_address_family(address: str) -> None:
    """Raise ValueError if Mooncake cannot connect to addresses of this one's family."""
    if ipaddress.ip_address(address).version == 6 and not os.environ.get(_USE_IPV6):
        raise ValueError(
            f"Mooncake cannot use {address}: it was loaded for IPv4, since "
            f"{pod_contract.POD_IP} is not an IPv6 address; set {_USE_IPV6}=1 in the pod template"
        )


def require_rdma_devices(protocol: str, names: str) -> None:
    """Raise ValueError if `protocol` is rdma and this node lacks the devices of `names`.

    Mooncake itself falls back to TCP without a word when it finds no device. `names` is
    comma-separated; empty means any device.
    """
    if protocol != "rdma":
        return
    present = {path.name for path in _RDMA_DEVICES.iterdir()} if _RDMA_DEVICES.is_dir() else set()
    missing = sorted({name for name in names.split(",") if name} - present)
    if present and not missing:
        return
    problem = f"the RDMA devices {', '.join(missing)}" if missing else "an RDMA device"
    raise ValueError(
        f"protocol is rdma, but this pod does not see {problem} "
        f"({_RDMA_DEVICES} has {', '.join(sorted(present)) or 'none'}); schedule the pool on nodes "
        "with RDMA and request the device in its pod template (a device plugin's resource, such as "
        "rdma/hca, or a claim), correct deviceName, or set protocol to tcp"
    )
