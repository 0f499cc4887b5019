"""The embedded CPU engine: gloo process groups built by hand, one for each session.

Gloo cannot cancel an operation and does not reliably notice a dead peer. So a session's calls run
on threads that outlive an aborted session until gloo lets go, at the latest at the operation's
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
from rollcall_runtime.sync.bucket_transfer import BucketTransfer, Work
from rollcall_runtime.sync.engine import EngineKind, SyncSettings
from rollcall_runtime.sync.engines.common.threaded_engine import ThreadedEngine, ThreadedSession
from rollcall_runtime.sync.errors import (
    JoinFailedError,
    SyncError,
    TimedOutError,
    TransferFailedError,
)
from rollcall_runtime.sync.memory.buffers import Buffer
from rollcall_runtime.sync.rendezvous import Rendezvous

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

    def _make(
        self, *, group: str, session: SessionId, seats: Sequence[Seat], rank: int
    ) -> "GlooSession":
        return GlooSession(group=group, session=session, seats=seats, rank=rank, engine=self)


class GlooSession(ThreadedSession):
    """One process group, and what owns it while gloo is busy."""

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
        self._mover = BucketTransfer(
            start=self._broadcast, stop=self._check, settings=self.settings, landed=self._landed
        )

    def _connect(self, rendezvous: Rendezvous, deadline: float) -> None:  # noqa: ARG002
        settings = self.engine.settings_as(GlooSettings)
        try:
            self._group, self._store = make_group(
                rendezvous,
                address=self.engine.address,
                settings=settings,
                send_buffer_bytes=settings.send_buffer_bytes,
                rank=self.rank,
                size=len(self.seats),
            )
        except RuntimeError as error:
            cause = self._explain(error)
            raise JoinFailedError(str(cause), peer=cause.peer) from error

    def _send(self, buffer: Buffer, manifest: WeightManifest, deadline: float) -> None:
        self._mover.send(buffer, manifest, deadline)

    def _take(self, buffer: Buffer, manifest: WeightManifest, deadline: float) -> None:
        self._mover.receive(buffer, manifest, deadline)

    def _disconnect(self) -> None:
        self._mover.drain()
        self._group = None  # would block while an operation is in flight; none is left
        self._store = None  # after the group, which points to it

    def _broadcast(self, chunk: memoryview, seconds: float) -> Work:
        if self._group is None:
            raise TransferFailedError(f"{self.name} was not joined")
        return broadcast(self._group, chunk, seconds)

    def _explain(self, error: Exception) -> SyncError:
        return explain(self.name, error, self.seats)


def make_group(
    rendezvous: Rendezvous,
    *,
    address: str,
    settings: SyncSettings,
    send_buffer_bytes: int,
    rank: int,
    size: int,
    prefix: str = "",
) -> tuple[Any, Store]:
    """A process group of `size` that listens on `address`, and its store; rank 0 broadcasts.

    `prefix` tells the keys of several groups in one room apart. The store must outlive the group,
    which points to it. Raises RuntimeError.
    """
    make: Any = ProcessGroupGloo  # its stubs know neither these options nor this constructor
    options = make._Options()  # noqa: SLF001
    options._timeout = timedelta(seconds=settings.operation_timeout)  # noqa: SLF001
    options._threads = settings.in_flight  # noqa: SLF001  # each is busy with one
    # A connection and a thread to serve it for each device; operations take turns.
    options._devices = [  # noqa: SLF001
        make.create_device(hostname=address) for _ in range(settings.threads)
    ]
    store = _RendezvousStore(rendezvous, rank=rank, size=size, prefix=prefix)
    with send_buffers(send_buffer_bytes):
        return make(store, rank, size, options), store


def broadcast(group: Any, chunk: memoryview, seconds: float) -> Work:
    """Begin to send the chunk from the group's rank 0, or to fill it."""
    options = BroadcastOptions()
    options.rootRank = 0
    options.rootTensor = 0
    options.timeout = timedelta(seconds=seconds)  # torch 2.6 goes by the group's instead
    work: Work = group.broadcast([torch.frombuffer(chunk, dtype=torch.uint8)], options)
    return work


def explain(name: str, error: Exception, seats: Sequence[Seat]) -> SyncError:
    """What an error of gloo means; names the peer when its address tells it."""
    text = str(error).partition("\n")[0]  # what follows is a stack
    if "imed out" in text:
        return TimedOutError(f"{name}: {text}")
    named = set(re.findall(r"\[([0-9a-fA-F.:]+)\]:\d+", text))
    peers = [seat.member for seat in seats if seat.address in named]
    peer = peers[0] if len(peers) == 1 else None
    return TransferFailedError(f"{name}: {text}", peer=peer)


class _RendezvousStore(Store):
    """What gloo asks of a store while a group is built: each rank's addresses, for each device.

    Gloo asks for one rank after the other, twice. Each question is a way to the sender and back,
    and processes that compete for cores take their time to answer: so all ranks are asked for at
    once, and answers are kept.
    """

    def __init__(self, rendezvous: Rendezvous, *, rank: int, size: int, prefix: str) -> None:
        super().__init__()
        self._rendezvous, self._prefix = rendezvous, prefix
        self._rank, self._size = rank, size
        self._untold: dict[str, bytes] = {}  # goes out with the next question
        self._known: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:  # type: ignore[override]  # torch gives bytes
        self._known[key] = self._untold[self._prefix + key] = value

    def get(self, key: str) -> bytes:
        if key not in self._known:
            beginning, _, _ = key.rpartition("/")
            ranks = [f"{beginning}/{rank}" for rank in range(self._size)]
            # What this rank has told under its number, the others tell under theirs.
            keys = ranks if key in ranks and ranks[self._rank] in self._known else [key]
            told, self._untold = self._untold, {}
            values = self._rendezvous.get_all([self._prefix + key for key in keys], telling=told)
            self._known.update(zip(keys, values, strict=True))
        return self._known[key]

    def wait(
        self,
        keys: list[str],
        timeout: timedelta | None = None,  # noqa: ARG002 - the join's deadline holds
    ) -> None:
        for key in keys:
            self.get(key)


@contextmanager
def send_buffers(nbytes: int) -> Iterator[None]:
    """Give the TCP connections that are made inside send buffers of `nbytes`; 0 leaves them.

    Linux grows a send buffer to megabytes. With several connections these no longer fit into the
    cache, and each byte that is sent goes to memory and back: on loopback a quarter of a
    transfer's CPU time. A connection that another thread makes meanwhile gets the same buffer.
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
    with socket.socket(fileno=os.dup(descriptor)) as connection:  # closes its own copy only
        connection.getpeername()  # a listener has none
        if connection.type == socket.SOCK_STREAM and connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, nbytes)
