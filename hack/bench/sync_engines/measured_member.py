"""A member for benches: it also copies, sends over bare sockets, and compares bytes."""

import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hack.bench.sync_engines.tcp_baseline import TcpBaseline
from rollcall_protocol.wire.ids import MemberId
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync import bucket_transfer
from rollcall_runtime.sync.bucket_checks import ArrivingBuckets, wrong_buckets
from rollcall_runtime.sync.engine import HOST
from rollcall_runtime.sync.engines.common.threaded_engine import ThreadedEngine
from rollcall_runtime.sync.memory.buffers import FlatBuffer, HostBuffer
from rollcall_runtime.sync.memory.device_allocators import device_allocator
from rollcall_runtime.sync.memory.device_buffers import DeviceAllocator, DeviceBuffer
from rollcall_runtime.sync.weights.shards import Shard, select
from rollcall_runtime.sync.weights.snapshots import Snapshotter, WeightSnapshot
from rollcall_runtime.worker.devices import worker_device
from tests.unit.rollcall_runtime.sync import member as members

FORK_SERVER = f"{__name__}:fork_members"
_TENSOR_BYTES = 32 << 20  # the largest tensor, as in a model of a few billion parameters
_PAGE = 4096


@dataclass(frozen=True, slots=True)
class SnapshotTimings:
    """A snapshot of one sender: seconds to copy, seconds to compute digests, what it holds."""

    copy: float
    digests: float
    manifest: WeightManifest


class MeasuredMember(members.GroupMember):
    """A sender holds `tensors` (the trainer's) and snapshots of them; a receiver one buffer.

    All in host memory, or what can be on a device; bare sockets and memcpy know host memory alone.
    """

    def __init__(self, member: MemberId) -> None:
        _spread(int(member.pod_uid.rpartition("-")[2]))
        super().__init__(member)
        self._device: DeviceAllocator | None = None
        self._tensors: list[tuple[str, torch.Tensor]] = []
        self._scratch = self._plain = self._landing = self._part = HostBuffer(0)
        self._target: FlatBuffer = self._landing
        self._star = TcpBaseline()

    def stage_on_device(self) -> None:
        """From now on; weights arrive in host memory if the engine knows no other."""
        self._device = self._accelerator()
        if self._device is None:
            raise RuntimeError("this machine has no accelerator to stage weights on")
        if self._device.device in self._engine.buffer_devices:
            self._stage_in(self._device)

    def _accelerator(self) -> DeviceAllocator | None:
        return device_allocator(worker_device())

    # --- senders ---

    def hold_weights(self, seed: int, nbytes: int, bucket_bytes: int) -> None:
        """Random bf16 tensors of `nbytes` (even) in all, and warm buffers for two snapshots."""
        torch.set_num_threads(len(os.sched_getaffinity(0)))  # a trainer's step leaves them idle
        self._tensors = bf16_tensors(seed, nbytes)
        if torch.accelerator.is_available() and self._device is not None:
            self._tensors = [(name, held.to(worker_device())) for name, held in self._tensors]
        self._snapshotter = Snapshotter(
            bucket_bytes=bucket_bytes,
            buffers=2,
            spare_bytes=0,
            memory=self._device,
            keep=frozenset() if self._memory is not None else HOST,
            cheap=self._cheap,
        )
        for _ in range(2):  # faults the pages in, and fills both buffers
            self.take_snapshot()
        self._scratch = HostBuffer(self._held.buffer.nbytes)
        self.memcpy()

    def check_by(self, checks: str) -> None:
        """From now on, snapshots have these checks, and receivers apply them or none."""
        self._snapshotter.cheap = checks != "digests"
        none = checks == "none"
        for name, real, without in (
            ("ArrivingBuckets", ArrivingBuckets, _Unchecked),
            ("wrong_buckets", wrong_buckets, _none_wrong),
        ):
            setattr(bucket_transfer, name, without if none else real)

    def take_snapshot(self) -> SnapshotTimings:
        """What the trainer does for each version; the previous snapshot goes."""
        began = time.perf_counter()
        draft = self._snapshotter.take(self._tensors, timeout=30)
        copied = time.perf_counter()
        sealed = draft.finish()
        ended = time.perf_counter()
        held, self._snapshot = self._snapshot, sealed
        if held is not None:
            held.release()
        self._plain = self._in_host_memory(sealed.buffer)
        return SnapshotTimings(copied - began, ended - copied, sealed.manifest)

    def send(self, group: str, manifest: WeightManifest, timeout: float) -> None:
        """Publish the snapshot, this sender's part of what `manifest` describes."""
        self._sessions[group].publish(self._held.buffer, manifest, timeout=timeout)

    def memcpy(self) -> float:
        """Bytes per second of a plain copy of the snapshot."""
        source = self._plain
        began = time.perf_counter()
        self._scratch.memory[:] = source.memory
        return source.nbytes / (time.perf_counter() - began)

    def sent_digests(self) -> list[str]:
        """One for each tensor of the snapshot, in order."""
        return [members.digest(tensor) for _, tensor in self._held.tensors()]

    def sent_rows(self, shard: Shard) -> list[str]:
        """One for the rows of each tensor of the snapshot that the shard needs."""
        found = []
        for name, tensor in self._held.tensors():
            rows = shard.rows(name, tuple(tensor.shape)) or (0, len(tensor))
            if rows[0] < rows[1]:
                found.append(members.digest(tensor[slice(*rows)]))
        return found

    def star_listen(self, address: str, receivers: int) -> int:
        """The port at which `star_accept` waits."""
        return self._star.listen(address, receivers)

    def star_accept(self, receivers: int) -> None:
        self._star.accept(receivers)

    def star_send(self) -> None:
        self._star.send(self._plain.memory)

    def _in_host_memory(self, buffer: FlatBuffer) -> HostBuffer:
        if isinstance(buffer, HostBuffer):
            return buffer
        plain = self._plain if self._plain.nbytes == buffer.nbytes else HostBuffer(buffer.nbytes)
        buffer.read(0, buffer.nbytes, plain.memory)
        return plain

    # --- receivers ---

    def hold_target(self, nbytes: int) -> None:
        """Make the buffer that everything arrives in; writing to it faults its pages in."""
        if self._landing.nbytes != nbytes:
            self._target = self._landing = HostBuffer(nbytes)
        torch.frombuffer(self._landing.memory, dtype=torch.uint8).zero_()
        if self._memory is not None:
            self._target = DeviceBuffer(self._memory, nbytes)

    def hold_part(self, manifest: WeightManifest, shard: Shard) -> None:
        """Make the buffer that a part arrives in."""
        self._part = HostBuffer(select(manifest, shard).manifest.total_bytes)
        if self._part.nbytes:
            torch.frombuffer(self._part.memory, dtype=torch.uint8).zero_()

    def spoil(self) -> None:
        """Change a byte of every page, so that only newly received bytes can be right."""
        for buffer in (self._target, self._part):
            if buffer.nbytes:
                held = buffer.read(0, buffer.nbytes)
                torch.frombuffer(held, dtype=torch.uint8)[::_PAGE] ^= 0xFF
                if buffer.device != "cpu":
                    buffer.write(0, held)

    def take(self, group: str, manifest: WeightManifest, timeout: float) -> None:
        """Receive into the buffer."""
        self._sessions[group].receive(self._target, manifest, timeout=timeout)

    def take_part(self, group: str, manifest: WeightManifest, shard: Shard, timeout: float) -> int:
        """Receive what the shard needs; how many bytes were asked of others."""
        taken, engine = select(manifest, shard), self._engine
        if not isinstance(engine, ThreadedEngine):
            raise TypeError(f"{type(engine).__name__} does not count the bytes that it reads")
        before = engine.read_bytes
        self._sessions[group].receive_buckets(
            self._part, manifest, only=taken.buckets, timeout=timeout
        )
        return engine.read_bytes - before

    def taken_rows(self, manifest: WeightManifest, shard: Shard) -> list[str]:
        """One digest for each tensor of the part that arrived, in order."""
        part = WeightSnapshot(select(manifest, shard).manifest, self._part.hold())
        return [members.digest(tensor) for _, tensor in part.tensors()]

    def taken_digests(self, manifest: WeightManifest) -> list[str]:
        """One for each tensor that arrived, in order."""
        memory = self._target.read(0, self._target.nbytes)
        return [
            _digest(spec.dtype, spec.shape, memory[spec.offset : spec.offset + spec.nbytes])
            for spec in manifest.tensors
        ]

    def star_connect(self, senders: Sequence[tuple[str, int]]) -> None:
        self._star.connect(senders)

    def star_receive(self, manifest: WeightManifest) -> None:
        bounds = manifest.bounds()
        self._star.receive([self._landing.memory[start:end] for start, end in bounds])

    def star_close(self) -> None:
        self._star.close()


class _Unchecked(ArrivingBuckets):
    """All buckets are right."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def arrived(self, bucket: int, start: int, end: int) -> None:
        pass

    def is_right(self, bucket: int) -> bool:
        return True


def _none_wrong(*_: object) -> list[int]:
    return []


def _spread(number: int) -> None:
    """In the process of the `number`-th member, before it opens its engine: choose its device.

    NCCL refuses two ranks of one host on one GPU. Where there are more members than GPUs, those
    that share one claim to be hosts of their own, and talk over sockets.
    """
    count = torch.accelerator.device_count()
    if count:
        os.environ["LOCAL_RANK"] = str(number % count)
        if number >= count:
            os.environ["NCCL_HOSTID"] = f"member-{number}"


def bf16_tensors(seed: int, nbytes: int) -> list[tuple[str, torch.Tensor]]:
    """Random tensors of `nbytes` in all, none larger than 32 MiB."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [_TENSOR_BYTES] * (nbytes // _TENSOR_BYTES)
    sizes += [nbytes % _TENSOR_BYTES] if nbytes % _TENSOR_BYTES else []
    return [
        (
            f"rank{seed}.layer{number}",
            torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator).view(
                torch.bfloat16
            ),
        )
        for number, size in enumerate(sizes)
    ]


def _digest(dtype: str, shape: tuple[int, ...], raw: memoryview) -> str:
    return f"torch.{dtype} {shape} {hashlib.sha256(raw).hexdigest()}"


def fork_members() -> None:
    """The fork server of measured members."""
    members.fork_members(MeasuredMember)
