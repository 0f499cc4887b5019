"""The process group of one trainer, made once in a process and shared by all of its engines.

torch keeps one default process group in a process, and sharding builds on it; so a process holds at
most one TrainerProcessGroup. No environment variable is read except gloo's own GLOO_SOCKET_IFNAME.
"""

from __future__ import annotations

import importlib
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import HashStore, Store  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from rollcall_runtime.sync import rank_values
from rollcall_runtime.sync.rendezvous_connection import RendezvousAddress
from rollcall_runtime.sync.rendezvous_server import RendezvousServer
from rollcall_runtime.train.json_objects import json_objects
from rollcall_runtime.train.rendezvous_store import RendezvousStore

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from torch import Tensor

CHECKPOINT_TIMEOUT = timedelta(days=30)
_BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl", "npu": "cpu:gloo,npu:hccl"}
"""By torch device type. Tensors of the CPU always travel by gloo."""


@dataclass(frozen=True, slots=True)
class TrainerRendezvous:
    """Where the ranks meet. With one rank, only `timeout` is used.

    Rank 0 binds `host`, its own address, unless its parent process gave it the `listener`; the
    others connect to it by address or name. `secret` is
    what a rank shows there: one that only they know, or its own, which `admit` of rank 0 judges.
    `refused` counts by kind what came of no rank.
    `timeout` seconds bound the rendezvous and every collective
    after it, so that it must exceed the longest wait of one rank for another.
    """

    host: str = ""
    port: int = 0
    rank: int = 0
    size: int = 1
    secret: str = field(default="", repr=False)
    timeout: float = 600.0
    listener: socket.socket | None = None
    admit: Callable[[str], bool] | None = None
    refused: Callable[[str], None] = lambda _: None

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank {self.rank} is not within a world of {self.size}")
        if self.size > 1 and not (self.host and self.port):
            raise ValueError("several ranks need a host and a port to meet at")
        if self.size > 1 and not self.secret:
            raise ValueError("several ranks need a secret to meet")


class TrainerProcessGroup:
    """The ranks of one trainer, and `device`, which this one computes on.

    Values and tensors of the CPU travel by gloo, whatever the device. Until `close` what libraries
    send as objects is JSON and no pickle (`json_objects`). RuntimeError if the process has a group,
    or on a timeout.
    """

    def __init__(
        self, rendezvous: TrainerRendezvous | None = None, *, device: str | torch.device = "cpu"
    ) -> None:
        if dist.is_initialized():
            raise RuntimeError("this process has a training process group already")
        meeting = rendezvous or TrainerRendezvous()
        self.rank, self.size = meeting.rank, meeting.size
        self._meshes: dict[tuple[tuple[str, ...], tuple[int, ...]], DeviceMesh] = {}
        self._groups: dict[tuple[tuple[int, ...], ...], dist.ProcessGroup] = {}
        self._timeout = timedelta(seconds=meeting.timeout)
        # torch knows Ascend's device type only once its library is imported.
        backend = collective_backend(str(device).partition(":")[0])
        self.device = torch.device(device)
        if self.device.type != "cpu":
            # The worker's process sees its own device alone.
            torch.get_device_module(self.device).set_device(self.device.index or 0)
        with ExitStack() as undo:
            undo.enter_context(json_objects())  # before any other rank can send something
            self._store = _store(meeting, undo)  # gloo's groups point to it
            dist.init_process_group(
                backend=backend,
                store=self._store,
                rank=self.rank,
                world_size=self.size,
                timeout=self._timeout,
            )
            undo.callback(_destroy)
            # For threads that write checkpoints beside training. A rank whose volume hangs keeps
            # the others' threads waiting for as long as it takes, so there is no time limit.
            self.checkpoint_group = dist.new_group(backend="gloo", timeout=CHECKPOINT_TIMEOUT)
            self._owned = undo.pop_all()

    def mesh(self, **sizes: int) -> DeviceMesh:
        """Collective. The ranks in a grid; dimensions by name, the first one varies slowest.

        Made once for each grid, since its process groups and their threads stay until `close`.
        """
        names, counts = tuple(sizes), tuple(sizes.values())
        if (names, counts) not in self._meshes:
            made = init_device_mesh(self.device.type, counts, mesh_dim_names=names)
            self._meshes[names, counts] = made
        return self._meshes[names, counts]

    def group(self, *parts: Sequence[int]) -> dist.ProcessGroup:
        """Collective. The ranks of the part that has this one; each rank is in one part.

        Made once for the same parts, as meshes are.
        """
        key = tuple(tuple(part) for part in parts)
        if key not in self._groups:
            own, _ = dist.new_subgroups_by_enumeration(  # type: ignore[no-untyped-call]
                [list(part) for part in parts], timeout=self._timeout
            )
            self._groups[key] = own
        return self._groups[key]

    def broadcast(self, values: Tensor) -> Tensor:
        """Rank 0's `values` (CPU) on every rank, in place."""
        if self.size > 1:
            dist.broadcast(values, src=0)
        return values

    def broadcast_value(self, value: Any = None) -> Any:
        """Rank 0's small `value` (of JSON) on every rank."""
        if self.size == 1:
            return rank_values.decode(rank_values.encode(value))
        data = rank_values.encode(value) if self.rank == 0 else torch.empty(0, dtype=torch.uint8)
        length = rank_values.checked_length(self.broadcast(torch.tensor(len(data))))
        return rank_values.decode(
            self.broadcast(data if self.rank == 0 else data.new_empty(length))
        )

    def any(self, value: bool) -> bool:
        """Whether `value` is true on any rank: one collective, where `gather` is two."""
        if self.size == 1:
            return value
        found = torch.tensor(value, dtype=torch.int32)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return bool(found)

    def gather(self, value: Any) -> list[Any]:
        """Every rank's small `value` (of JSON) on all ranks, in their order."""
        return rank_values.gather(value, ranks=self.size, group=None)

    def gather_for_checkpoint(self, value: Any) -> list[Any]:
        """Like `gather`, in the process group of the threads that write checkpoints."""
        return rank_values.gather(value, ranks=self.size, group=self.checkpoint_group)

    def close(self) -> None:
        """Destroy the group; the next collective of the other ranks fails. Harmless twice."""
        self._owned.close()


def collective_backend(device_type: str) -> str:
    """Torch's name for what moves tensors of this device type and of the CPU.

    ValueError for a type that is not known. On an Ascend device torch_npu registers its library.
    """
    if device_type not in _BACKENDS:
        raise ValueError(f"no collective library is known for {device_type!r} devices")
    if device_type == "npu":
        importlib.import_module("torch_npu")
    return _BACKENDS[device_type]


def _destroy() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _store(meeting: TrainerRendezvous, undo: ExitStack) -> Store:
    if meeting.size == 1:
        return HashStore()
    if meeting.rank == 0:
        server = RendezvousServer(
            meeting.host,
            port=meeting.port,
            listener=meeting.listener,
            secret=meeting.secret,
            admit=meeting.admit,
            refused=meeting.refused,
        )
        undo.callback(server.close)
    address = RendezvousAddress(meeting.host, meeting.port, meeting.secret)
    store = RendezvousStore(address, rank=meeting.rank, size=meeting.size, timeout=meeting.timeout)
    undo.callback(store.close)
    return store
