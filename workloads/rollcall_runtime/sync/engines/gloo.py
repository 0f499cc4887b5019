"""The built-in CPU engine: gloo process groups built by hand, one for each session.

Gloo cannot cancel an operation and does not reliably notice a dead peer. So a session's calls run
on threads that outlive an aborted session until gloo returns, at the latest at the operation's
timeout.
"""

import os
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch._C._distributed_c10d import BroadcastOptions, ProcessGroupGloo, Store

from rollcall_protocol.wire.ids import SessionId
from rollcall_protocol.wire.messages import Seat
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.bucket_transfer import BucketTransfer, TransferHandle
from rollcall_runtime.sync.engine import EngineKind, SyncSettings
from rollcall_runtime.sync.engines.common.threaded_engine import ThreadedEngine, ThreadedSession
from rollcall_runtime.sync.errors import (
    JoinFailedError,
    SyncError,
    TimedOutError,
    TransferFailedError,
)
from rollcall_runtime.sync.memory.buffers import Buffer
from rollcall_runtime.sync.rendezvous import SessionRendezvous

SEND_BUFFER_BYTES = 512 << 10
_DESCRIPTORS = Path("/proc/self/fd")


@dataclass(frozen=True, slots=True)
class GlooSettings(SyncSettings):
    """`send_buffer_bytes` is the send buffer of each connection; 0 leaves it to the kernel.

    A link needs its bandwidth times its round trip in the buffers of all `threads` connections.
    """

    send_buffer_bytes: int = SEND_BUFFER_BYTES

    def __post_init__(self) -> None:
        SyncSettings.__post_init__(self)
        if self.send_buffer_bytes < 0:
            raise ValueError("send_buffer_bytes must not be negative")


class GlooEngine(ThreadedEngine):
    """Broadcast over TCP between host buffers, along gloo's binomial tree: log N deep."""

    name = "gloo"
    kind = EngineKind.GROUP
    devices = frozenset({"cpu"})
    settings_type = GlooSettings

    def _new_session(
        self, *, group: str, session: SessionId, seats: Sequence[Seat], rank: int
    ) -> "GlooSession":
        return GlooSession(group=group, session=session, seats=seats, rank=rank, engine=self)


class GlooSession(ThreadedSession):
    """One gloo process group."""

    def __init__(
        self,
        *,
        group: str,
        session: SessionId,
        seats: Sequence[Seat],
        rank: int,
        engine: GlooEngine,
    ) -> None:
        super().__init__(group=group, session=session, seats=seats, rank=rank, engine=engine)
        self._group: Any = None
        self._store: Store | None = None
        self._transfer = BucketTransfer(
            start=self._broadcast,
            raise_if_aborted=self._raise_if_aborted,
            settings=self.settings,
            bucket_done=self._trace_bucket,
        )

    def _connect(self, rendezvous: SessionRendezvous, deadline: float) -> None:  # noqa: ARG002
        settings = self.engine.settings_as(GlooSettings)
        try:
            self._group, self._store = new_process_group(
                rendezvous,
                address=self.engine.address,
                settings=settings,
                send_buffer_bytes=settings.send_buffer_bytes,
                rank=self.rank,
                size=len(self.seats),
            )
        except RuntimeError as error:
            cause = self._to_sync_error(error)
            raise JoinFailedError(str(cause), peer=cause.peer) from error

    def _send(self, buffer: Buffer, manifest: WeightManifest, deadline: float) -> None:
        self._transfer.send(buffer, manifest, deadline)

    def _receive(self, buffer: Buffer, manifest: WeightManifest, deadline: float) -> None:
        self._transfer.receive(buffer, manifest, deadline)

    def _disconnect(self) -> None:
        self._transfer.drain()
        self._group = None  # would block while an operation is in flight; none is
        self._store = None  # after the group, which points to it

    def _broadcast(self, chunk: memoryview, seconds: float) -> TransferHandle:
        if self._group is None:
            raise TransferFailedError(f"{self.name} was not joined")
        return broadcast(self._group, chunk, seconds)

    def _to_sync_error(self, error: Exception) -> SyncError:
        return gloo_error(self.name, error, self.seats)


def new_process_group(
    rendezvous: SessionRendezvous,
    *,
    address: str,
    settings: SyncSettings,
    send_buffer_bytes: int,
    rank: int,
    size: int,
    prefix: str = "",
) -> tuple[Any, Store]:
    """A process group of `size` that listens on `address`, and its store; rank 0 broadcasts.

    `prefix` separates the keys of several groups in one rendezvous. The store must outlive the
    group, which points to it. Raises RuntimeError.
    """
    make: Any = ProcessGroupGloo  # its stubs know neither these options nor this constructor
    options = make._Options()  # noqa: SLF001
    options._timeout = timedelta(seconds=settings.operation_timeout)  # noqa: SLF001
    options._threads = settings.in_flight  # noqa: SLF001  # each runs one operation
    # A connection and a thread to serve it for each device; operations take turns.
    options._devices = [  # noqa: SLF001
        make.create_device(hostname=address) for _ in range(settings.threads)
    ]
    store = _RendezvousStore(rendezvous, rank=rank, size=size, prefix=prefix)
    with send_buffers(send_buffer_bytes):
        return make(store, rank, size, options), store


def broadcast(group: Any, chunk: memoryview, seconds: float) -> TransferHandle:
    """Begin to broadcast the chunk from the group's rank 0, or to fill it."""
    options = BroadcastOptions()
    options.rootRank = 0
    options.rootTensor = 0
    options.timeout = timedelta(seconds=seconds)  # torch 2.6 goes by the group's instead
    work: TransferHandle = group.broadcast([torch.frombuffer(chunk, dtype=torch.uint8)], options)
    return work


def gloo_error(name: str, error: Exception, seats: Sequence[Seat]) -> SyncError:
    """The SyncError for an error of gloo; names the peer if the text has its address."""
    text = str(error).partition("\n")[0]  # a stack trace follows
    if "imed out" in text:
        return TimedOutError(f"{name}: {text}")
    named = set(re.findall(r"\[([0-9a-fA-F.:]+)\]:\d+", text))
    peers = [seat.member for seat in seats if seat.address in named]
    peer = peers[0] if len(peers) == 1 else None
    return TransferFailedError(f"{name}: {text}", peer=peer)


class _RendezvousStore(Store):
    """The store that gloo reads while a group is built: each rank's addresses, for each device.

    Gloo reads one rank's value after the other, twice. Each read is a round trip to the sender,
    which takes milliseconds among processes that compete for cores: so all ranks' values are read
    at once and cached.
    """

    def __init__(self, rendezvous: SessionRendezvous, *, rank: int, size: int, prefix: str) -> None:
        super().__init__()
        self._rendezvous, self._prefix = rendezvous, prefix
        self._rank, self._size = rank, size
        self._unsent: dict[str, bytes] = {}  # stored with the next read
        self._cached: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:  # type: ignore[override]  # torch gives bytes
        self._cached[key] = self._unsent[self._prefix + key] = value

    def get(self, key: str) -> bytes:
        if key not in self._cached:
            beginning, _, _ = key.rpartition("/")
            ranks = [f"{beginning}/{rank}" for rank in range(self._size)]
            # A key that ends with this rank's number has a counterpart for every other rank.
            keys = ranks if key in ranks and ranks[self._rank] in self._cached else [key]
            unsent, self._unsent = self._unsent, {}
            values = self._rendezvous.get_all([self._prefix + key for key in keys], storing=unsent)
            self._cached.update(zip(keys, values, strict=True))
        return self._cached[key]

    def wait(
        self,
        keys: list[str],
        timeout: timedelta | None = None,  # noqa: ARG002 - the join's deadline holds
    ) -> None:
        for key in keys:
            self.get(key)


@contextmanager
def send_buffers(nbytes: int) -> Iterator[None]:
    """Limit the send buffers of TCP connections opened in the block to `nbytes`; 0: no limit.

    Linux grows a send buffer to megabytes. With several connections these no longer fit into the
    cache, and each byte that is sent goes to memory and back: on loopback a quarter of a
    transfer's CPU time. A connection that another thread opens meanwhile gets the same limit.
    """
    if nbytes == 0:
        yield
        return
    before = set(_sockets())
    yield
    for descriptor in set(_sockets()) - before:
        with suppress(OSError):  # closed since, or not TCP
            _limit(descriptor, nbytes)


def _sockets() -> Iterator[int]:
    for entry in _DESCRIPTORS.iterdir():
        with suppress(OSError):  # closed since
            if str(entry.readlink()).startswith("socket:"):
                yield int(entry.name)


def _limit(descriptor: int, nbytes: int) -> None:
    with socket.socket(fileno=os.dup(descriptor)) as connection:  # closes this copy only
        connection.getpeername()  # a listener has none
        if connection.type == socket.SOCK_STREAM and connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, nbytes)
