"""A member of a sync group in a process of its own, which runs the commands of a bench or a test.

A fork server (`fork_members`) imports torch once and forks a member for each line that it reads,
which is the address to connect to. Each command of a member runs in a thread of its own, so that
`abort` can overtake `publish`; its reply has the times (CLOCK_MONOTONIC, one clock for all
processes) at which it began and ended.
"""

import hashlib
import os
import signal
import sys
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

import torch

from rollcall_protocol.job_config import EngineRef, GroupConfig
from rollcall_protocol.wire.ids import Lineage, MemberId, SessionId, Version
from rollcall_protocol.wire.messages import Seat
from rollcall_protocol.wire.roster import DEFAULT_GROUP
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.engine import Role, SyncEngine, SyncSession
from rollcall_runtime.sync.memory.device_buffers import DeviceAllocator
from rollcall_runtime.sync.multi_sender import open_session
from rollcall_runtime.sync.open_engine import open_engine
from rollcall_runtime.sync.weights.shards import Shard, receive
from rollcall_runtime.sync.weights.snapshots import Snapshotter, WeightSnapshot
from rollcall_runtime.sync.weights.staging import StagingArea


@dataclass(frozen=True, slots=True)
class MemberCall:
    """A command to a member."""

    number: int
    name: str
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class MemberReply:
    """A command's outcome: `error` is the exception, `began` and `ended` monotonic seconds."""

    number: int
    result: Any
    error: BaseException | None
    began: float
    ended: float


def version(number: int) -> Version:
    """Version `number` of the one lineage that benches and tests use."""
    return Version(Lineage(1, 1), number)


def odd_tensors(seed: int, megabytes: int) -> list[tuple[str, torch.Tensor]]:
    """Odd shapes, many dtypes, empty and zero-dimensional ones, and one of `megabytes`."""
    generator = torch.Generator().manual_seed(seed)

    def noise(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        size = torch.empty(shape, dtype=dtype).nbytes
        data = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
        return data.view(dtype).reshape(shape)

    named = [
        ("big", noise((megabytes, 1 << 20), torch.uint8)),
        ("bf16", noise((3, 5, 7), torch.bfloat16)),
        ("strided", noise((9, 4), torch.float32).t()),
        ("fp8", noise((13,), torch.float8_e4m3fn)),
        ("fp64", noise((2, 1, 3), torch.float64)),
        ("int8", noise((1,), torch.int8)),
        ("int64", noise((11,), torch.int64)),
        ("bool", torch.tensor([True, False, True])),
        ("scalar", torch.tensor(float(seed))),
        ("empty", torch.empty((0, 3))),
    ]
    return [(f"layer.{name}", tensor) for name, tensor in named]


def digests(snapshot: WeightSnapshot) -> dict[str, str]:
    """A digest of each tensor's dtype, shape and bytes."""
    return {name: digest(tensor) for name, tensor in snapshot.tensors()}


def digest(tensor: torch.Tensor) -> str:
    """A digest of dtype, shape and bytes."""
    raw = tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{tensor.dtype} {tuple(tensor.shape)} {hashlib.sha256(raw).hexdigest()}"


class GroupMember:
    """A member: each public method is a command."""

    def __init__(self, member: MemberId) -> None:
        self._member = member
        self._opened: SyncEngine | None = None
        self._shard: Shard | None = None
        self._sessions: dict[str, SyncSession] = {}
        self._snapshot: WeightSnapshot | None = None
        self._snapshotter = Snapshotter(bucket_bytes=1, buffers=2)
        self._stage = StagingArea()
        self._memory: DeviceAllocator | None = None  # where weights are staged, if not on the host

    @property
    def _engine(self) -> SyncEngine:
        if self._opened is None:
            raise RuntimeError("the engine is not open")
        return self._opened

    @property
    def _cheap(self) -> bool:
        """Whether checksums do for the engine, if one is open."""
        return self._opened is None or not self._opened.needs_digests

    def open(
        self,
        engine: str,
        address: str,
        role: Role,
        config: dict[str, Any],
        device: str | None = None,
        shard: Shard | None = None,
    ) -> Seat:
        """Make the engine with these settings (as in an RLJob) and open it."""
        opened = open_engine(
            GroupConfig(DEFAULT_GROUP, EngineRef(engine, config)),
            member=self._member,
            address=address,
            role=role,
            device=device,
            shard=shard,
        )
        self._opened, self._shard = opened.engine, opened.shard
        return Seat(self._member, opened.address or address, opened.descriptor)

    def join(
        self,
        group: str,
        session: SessionId,
        seats: tuple[Seat, ...],
        timeout: float,
        senders: int = 1,
    ) -> None:
        rank = [seat.member for seat in seats].index(self._member)
        opened = open_session(
            self._engine, group=group, session=session, seats=seats, rank=rank, senders=senders
        )
        self._sessions[group] = opened
        opened.join(timeout=timeout)

    def snapshot(self, seed: int, megabytes: int, bucket_bytes: int) -> WeightManifest:
        self._snapshot = None  # lets its buffer go
        self._snapshotter = Snapshotter(
            bucket_bytes=bucket_bytes,
            buffers=2,
            memory=self._memory,
            cheap=self._cheap,
        )
        self._snapshot = self._snapshotter.take(odd_tensors(seed, megabytes), timeout=1).finish()
        return self._snapshot.manifest

    @property
    def _held(self) -> WeightSnapshot:
        if self._snapshot is None:
            raise RuntimeError("there is no snapshot")
        return self._snapshot

    def digests(self) -> dict[str, str]:
        return digests(self._held)

    def publish(self, group: str, timeout: float) -> None:
        held = self._held
        self._sessions[group].publish(held.buffer, held.manifest, timeout=timeout)

    def receive(self, group: str, number: int, manifest: WeightManifest, timeout: float) -> None:
        receive(
            self._sessions[group],
            version(number),
            manifest,
            shard=self._shard,
            stage=self._stage,
            patience=timeout,
            timeout=timeout,
        )

    def commit(self, number: int, check: bool = True) -> dict[str, str]:
        with self._stage.committing(version(number)) as snapshot:
            return digests(snapshot) if check else {}

    def served(self) -> tuple[Version | None, int]:
        """The served version and a digest over its buffer."""
        served = self._stage.served
        if served is None:
            return None, 0
        held = self._stage.held(served)
        if held is None:
            raise RuntimeError(f"{served} is no longer served")
        return served, zlib.crc32(held.buffer.read(0, held.buffer.nbytes))

    def _stage_in(self, memory: DeviceAllocator) -> None:
        """Stage in this memory; call before anything is staged."""
        self._memory, self._stage = memory, StagingArea(memory=memory)

    def abort(self, group: str) -> None:
        self._sessions[group].abort()

    def counts(self) -> dict[str, int]:
        """Counts that must not grow from session to session."""
        server = getattr(self._engine, "rendezvous_server", None)
        return {
            "descriptors": len(list(Path("/proc/self/fd").iterdir())),
            "threads": len(list(Path("/proc/self/task").iterdir())),
            "abandoned": self._engine.abandoned,
            "rendezvous_sessions": server.sessions if server else 0,
            "buffers": self._stage.state.buffers,
            "in_use": self._stage.state.in_use,
        }

    def close(self) -> None:
        self._engine.close()


def _answer(connection: Connection, lock: threading.Lock, method: Any, call: MemberCall) -> None:
    began = time.monotonic()
    result, error = None, None
    try:
        result = method(**call.kwargs)
    except Exception as caught:  # noqa: BLE001 - the test gets it
        error = caught
    reply = MemberReply(call.number, result, error, began, time.monotonic())
    with lock:
        try:
            connection.send(reply)
        except (TypeError, AttributeError):  # an exception that cannot be pickled
            connection.send(replace(reply, error=RuntimeError(repr(error))))


def serve(address: str, make: Callable[[MemberId], GroupMember]) -> None:
    """Connect to `address` and run its commands until it hangs up."""
    with Client(address, family="AF_UNIX") as connection:
        connection.send(os.getpid())
        member = make(connection.recv())
        lock = threading.Lock()
        while True:
            try:
                call: MemberCall = connection.recv()
            except EOFError:
                os._exit(0)
            args = (connection, lock, getattr(member, call.name), call)
            threading.Thread(target=_answer, args=args, daemon=True).start()


def fork_members(make: Callable[[MemberId], GroupMember] = GroupMember) -> None:
    """Fork a member for each address on standard input."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # exited members need no wait
    for line in sys.stdin:
        if os.fork() == 0:
            os.setsid()
            serve(line.strip(), make)
