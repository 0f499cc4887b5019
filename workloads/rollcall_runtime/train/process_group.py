"""The training engine's own process group, made from explicit addresses and nothing else.

torch keeps one default process group in a process, and FSDP2 builds on it; so a process holds at
most one TrainerProcessGroup. No environment variable is read except gloo's own GLOO_SOCKET_IFNAME.
"""

import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import HashStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

T = TypeVar("T")

CHECKPOINT_TIMEOUT = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class TrainerRendezvous:
    """Where the ranks meet. With one rank, host and port are not used.

    Rank 0 binds `host`, its own address; the others connect to it by address or name. `timeout`
    seconds bound the rendezvous and every collective after it, so that it must exceed the longest
    wait of one rank for another.
    """

    host: str = ""
    port: int = 0
    rank: int = 0
    size: int = 1
    timeout: float = 600.0

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank {self.rank} is not within a world of {self.size}")
        if self.size > 1 and not (self.host and self.port):
            raise ValueError("several ranks need a host and a port to meet at")


class TrainerProcessGroup:
    """The ranks of one trainer. RuntimeError if the process has a group, or on a timeout."""

    def __init__(self, rendezvous: TrainerRendezvous) -> None:
        if dist.is_initialized():
            raise RuntimeError("this process has a training process group already")
        self.rank = rendezvous.rank
        self.size = rendezvous.size
        dist.init_process_group(
            backend="gloo",
            store=_store(rendezvous),
            rank=self.rank,
            world_size=self.size,
            timeout=timedelta(seconds=rendezvous.timeout),
        )
        self.mesh: DeviceMesh = init_device_mesh("cpu", (self.size,))
        # For threads that write checkpoints beside training. A rank whose volume hangs keeps the
        # others' threads waiting for as long as it takes, so there is no time limit.
        self.checkpoint_group: dist.ProcessGroup = dist.new_group(
            backend="gloo", timeout=CHECKPOINT_TIMEOUT
        )

    def sum(self, values: Tensor) -> Tensor:
        """`values` added up over all ranks, in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def broadcast(self, values: Tensor) -> Tensor:
        """Rank 0's `values` on every rank, in place."""
        if self.size > 1:
            dist.broadcast(values, src=0)
        return values

    def gather(self, value: T) -> list[T]:
        """Every rank's small `value` (pickled) on all ranks, in their order."""
        return self._gather(value, None)

    def gather_for_checkpoint(self, value: T) -> list[T]:
        """Like `gather`, in the process group of the threads that write checkpoints."""
        return self._gather(value, self.checkpoint_group)

    def _gather(self, value: T, group: dist.ProcessGroup | None) -> list[T]:
        if self.size == 1:
            return [value]
        values: list[T | None] = [None] * self.size
        dist.all_gather_object(values, value, group=group)
        return cast("list[T]", values)

    def sum_per_mean(self) -> float:
        """The group's mean of ones: 1, or the number of ranks.

        Before torch 2.7 gloo silently returns the sum instead of the mean.
        """
        # The collective that FSDP2 uses; torch 2.13 renamed it.
        name = "reduce_scatter_single"
        reduce = getattr(dist, name, None) or dist.reduce_scatter_tensor
        shard = torch.empty(1)
        reduce(shard, torch.ones(self.size), op=dist.ReduceOp.AVG)
        return float(shard)

    def close(self) -> None:
        """Destroy the group; the next collective of the other ranks fails."""
        if dist.is_initialized():
            dist.destroy_process_group()


def _store(rendezvous: TrainerRendezvous) -> Store:
    if rendezvous.size == 1:
        return HashStore()
    timeout = timedelta(seconds=rendezvous.timeout)
    # Debian's torch has no libuv; the older backend suffices for a few ranks.
    if rendezvous.rank > 0:
        return TCPStore(
            rendezvous.host, rendezvous.port, rendezvous.size, timeout=timeout, use_libuv=False
        )
    # Without a listener of ours the store would listen on all interfaces.
    family = socket.AF_INET6 if ":" in rendezvous.host else socket.AF_INET
    listener = socket.create_server(
        (rendezvous.host, rendezvous.port), family=family, backlog=rendezvous.size
    )
    return TCPStore(
        rendezvous.host,
        rendezvous.port,
        rendezvous.size,
        is_master=True,
        timeout=timeout,
        use_libuv=False,
        master_listen_fd=listener.detach(),  # the store closes it
    )
