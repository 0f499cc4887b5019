"""Weights as one flat buffer: its layout, its digests, and the sender's snapshots.

A model is one flat buffer, in host memory or a device's, whose layout its manifest describes.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch

from rollcall_protocol.wire.weight_manifest import TensorSpec, WeightManifest
from rollcall_runtime.sync.bucket_checks import check_buckets
from rollcall_runtime.sync.errors import StagingError
from rollcall_runtime.sync.memory.buffers import BufferHold, BufferPool, BufferPoolState, FlatBuffer
from rollcall_runtime.sync.memory.device_buffers import (
    DeviceAllocator,
    DeviceBuffer,
    device_buffer_factory,
)

SPARE_BYTES = 512 << 20  # buffers that are smaller than this together are never waited for

_ALIGNMENT = 64  # bytes: a cache line, and a multiple of every dtype's size
_HOST = frozenset({"cpu"})
_DEVICE_BUFFERS = 2

NamedTensors = Iterable[tuple[str, torch.Tensor]]


class WeightSnapshot:
    """All weights of one version, with holds that keep their buffers from being overwritten: one
    buffer, or one in device memory and one with the same bytes in host memory.

    Call `release` after use; dropping the object releases it too.
    """

    __slots__ = ("_copy", "_hold", "manifest")

    def __init__(
        self, manifest: WeightManifest, hold: BufferHold, copy: BufferHold | None = None
    ) -> None:
        self.manifest = manifest
        self._hold, self._copy = hold, copy

    @property
    def buffer(self) -> FlatBuffer:
        """The flat buffer that the manifest describes, on the device if it is there."""
        return self._hold.buffer

    def buffer_in(self, devices: frozenset[str]) -> FlatBuffer:
        """The buffer in memory of one of these torch device types; StagingError if none is."""
        for hold in (self._hold, self._copy):
            if hold is not None and hold.buffer.device in devices:
                return hold.buffer
        wanted = ", ".join(sorted(devices))
        raise StagingError(
            f"the weights are in {self.buffer.device} memory, not in memory of: {wanted}"
        )

    @property
    def nearest(self) -> FlatBuffer:
        """The buffer that the host reads best."""
        return self.buffer if self._copy is None else self._copy.buffer

    @property
    def host(self) -> FlatBuffer:
        """The buffer in host memory; StagingError if there is none."""
        return self.buffer_in(_HOST)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Tensors by name, in the manifest's order, where the buffer is (on the CPU, if torch does
        not have that device); copy what must outlive this.

        Views, but for those that came in pieces, which are put together one at a time. Raises
        StagingError for a dtype that this torch does not have.
        """
        pieces: dict[str, list[TensorSpec]] = {}
        for spec in self.manifest.tensors:
            pieces.setdefault(spec.name, []).append(spec)
        for name, specs in pieces.items():
            views = [tensor_view(self.buffer, spec) for spec in specs]
            yield name, views[0] if len(views) == 1 else torch.cat(views)

    def share(self) -> "WeightSnapshot":
        """The same weights with holds of its own."""
        copy = self._copy.buffer.hold() if self._copy else None
        return WeightSnapshot(self.manifest, self.buffer.hold(), copy)

    def release(self) -> None:
        """Release the buffers; harmless when repeated."""
        self._hold.release()
        if self._copy is not None:
            self._copy.release()


def digests_of(snapshot: WeightSnapshot) -> tuple[str, ...]:
    """The BLAKE3 digests of a snapshot with checksums (outside the GIL); releases it."""
    try:
        size = snapshot.manifest.bucket_bytes
        return check_buckets(snapshot.nearest, size, cheap=False)[1]
    finally:
        snapshot.release()


class WeightSnapshotDraft:
    """A copy of the weights at one moment, before its digests or checksums are computed.

    For a copy in device memory, `copy` is a host buffer that `finish` fills too; unless `stays`,
    `finish` keeps only that one.
    """

    def __init__(
        self,
        specs: tuple[TensorSpec, ...],
        hold: BufferHold,
        copy: BufferHold | None = None,
        *,
        bucket_bytes: int,
        stays: bool = True,
        cheap: bool = False,
    ) -> None:
        self._specs = specs
        self._hold, self._copy, self._stays = hold, copy, stays
        self._bucket_bytes, self._cheap = bucket_bytes, cheap

    def finish(self) -> WeightSnapshot:
        """Compute digests or checksums (outside the GIL); call once. The snapshot takes over the
        holds.
        """
        buffer = self._hold.buffer
        copy = self._copy.buffer if self._copy else None
        check, found = check_buckets(buffer, self._bucket_bytes, cheap=self._cheap, copy=copy)
        manifest = WeightManifest(
            self._specs, buffer.nbytes, self._bucket_bytes, found, check=check
        )
        if self._copy is None or self._stays:
            return WeightSnapshot(manifest, self._hold, self._copy)
        self._hold.release()
        return WeightSnapshot(manifest, self._copy)


class Snapshotter:
    """Copies the trainer's tensors; training waits for nothing else.

    `buffers` is how many copies in host memory may exist: the one kept for newcomers, the one being
    sent, and one that an aborted session may still hold. Small models may have more, up to
    `spare_bytes`.

    With device memory the copy is made there, in one of `device_buffers` (small models again may
    have more), which on a GPU is many times faster than to the host. `keep` names the torch device
    types in whose memory the copy stays after `finish`, by default the device's alone.

    Tensors of float32 are copied as `dtype`. With `cheap` checks the manifest has checksums.
    """

    def __init__(
        self,
        *,
        bucket_bytes: int,
        buffers: int = 3,
        spare_bytes: int = SPARE_BYTES,
        memory: DeviceAllocator | None = None,
        keep: frozenset[str] = frozenset(),
        device_buffers: int = _DEVICE_BUFFERS,
        dtype: torch.dtype = torch.float32,
        cheap: bool = False,
    ) -> None:
        self._bucket_bytes, self._stays, self._dtype = bucket_bytes, True, dtype
        self.cheap = cheap
        host = BufferPool(limit=buffers, spare_bytes=spare_bytes)
        self._pool = host
        self._copies: BufferPool | None = None
        if memory is not None:
            kept = keep or {memory.device}
            if not kept <= {"cpu", memory.device}:
                raise ValueError(
                    f"weights in {memory.device} memory cannot be kept in memory of: {sorted(kept)}"
                )
            self._pool = BufferPool(
                limit=device_buffers, spare_bytes=spare_bytes, make=device_buffer_factory(memory)
            )
            self._copies = host if "cpu" in kept else None
            self._stays = memory.device in kept

    @property
    def _pools(self) -> list[BufferPool]:
        return [self._pool] if self._copies is None else [self._pool, self._copies]

    @property
    def state(self) -> BufferPoolState:
        """How many buffers exist and are in use, for metrics."""
        states = [pool.state for pool in self._pools]
        return BufferPoolState(sum(s.buffers for s in states), sum(s.in_use for s in states))

    def take(
        self, tensors: NamedTensors, *, timeout: float, layout: NamedTensors | None = None
    ) -> WeightSnapshotDraft:
        """Copy `tensors` (any device, any strides); the caller may change them afterwards.

        With `layout`, tensors on the meta device that say names, dtypes and shapes in their order,
        `tensors` are taken from their iterator one by one, so that they need not exist together;
        ValueError if one is not as announced. Waits while all buffers are in use (earlier snapshots
        not released, sends not ended), and raises ExhaustedError after `timeout` seconds. Call
        `finish` on the draft in another thread: training need not wait for digests.
        """
        if layout is None:
            layout = tensors = list(tensors)
        specs, total = lay_out(list(layout), dtype=self._dtype)
        holds: list[BufferHold] = []
        try:
            for pool in self._pools:
                holds.append(pool.take(total, timeout=timeout))  # noqa: PERF401 - kept on an error
            fill(holds[0].buffer, _placed(specs, tensors, self._dtype))
        except BaseException:
            for hold in holds:
                hold.release()
            raise
        return WeightSnapshotDraft(
            specs,
            *holds,
            bucket_bytes=self._bucket_bytes,
            stays=self._stays,
            cheap=self.cheap,
        )


def lay_out(
    named: Sequence[tuple[str, torch.Tensor]], *, dtype: torch.dtype = torch.float32
) -> tuple[tuple[TensorSpec, ...], int]:
    """Each tensor's place in the flat buffer, and the buffer's length in bytes.

    Those of float32 are laid out as `dtype`. Raises ValueError when two tensors have one name.
    """
    specs: list[TensorSpec] = []
    end = 0
    for name, tensor in named:
        sent = _sent(tensor, dtype)
        nbytes = tensor.numel() * sent.itemsize
        specs.append(TensorSpec(name, _name_of(sent), tuple(tensor.shape), end, nbytes))
        end += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
    if len({spec.name for spec in specs}) != len(specs):
        raise ValueError("two tensors have the same name")
    return tuple(specs), end


def _sent(tensor: torch.Tensor, dtype: torch.dtype) -> torch.dtype:
    return dtype if tensor.dtype == torch.float32 else tensor.dtype


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _placed(
    specs: Sequence[TensorSpec], tensors: NamedTensors, sent: torch.dtype
) -> Iterator[tuple[TensorSpec, torch.Tensor]]:
    """Each tensor with its place; ValueError if it is not the one that `specs` has next."""
    for spec, (name, tensor) in zip(specs, tensors, strict=True):
        dtype = _name_of(_sent(tensor, sent))
        if (name, dtype, tuple(tensor.shape)) != (spec.name, spec.dtype, spec.shape):
            raise ValueError(f"{name} of {tuple(tensor.shape)} came where {spec.name} was to come")
        yield spec, tensor.detach()


def fill(buffer: FlatBuffer, placed: Iterable[tuple[TensorSpec, torch.Tensor]]) -> None:
    """Copy each tensor to its place."""
    if isinstance(buffer, DeviceBuffer):
        buffer.put((spec.offset, weight.to(_dtype_of(spec))) for spec, weight in placed)
        return
    for spec, weight in placed:
        tensor_view(buffer, spec).copy_(weight)


def tensor_view(buffer: FlatBuffer, spec: TensorSpec) -> torch.Tensor:
    """The tensor, a view of the buffer or a copy.

    StagingError if this torch lacks its dtype, or if its bytes are not of its shape.
    """
    return _view(*_part(buffer, spec))


def _part(buffer: FlatBuffer, spec: TensorSpec) -> tuple[torch.Tensor, TensorSpec]:
    """Memory that holds the tensor, and the tensor's place in that memory."""
    if isinstance(buffer, DeviceBuffer):
        return buffer.tensor(spec.offset, spec.nbytes), replace(spec, offset=0)
    if buffer.nbytes == 0:
        return torch.empty(0, dtype=torch.uint8), spec
    return torch.frombuffer(buffer.memory, dtype=torch.uint8), spec


def _dtype_of(spec: TensorSpec) -> torch.dtype:
    dtype = getattr(torch, spec.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise StagingError(f"tensor {spec.name}: this torch has no dtype {spec.dtype!r}")
    return dtype


def _view(flat: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    dtype = _dtype_of(spec)
    if math.prod(spec.shape) * dtype.itemsize != spec.nbytes:
        problem = f"{spec.nbytes} bytes are not {list(spec.shape)} of {spec.dtype}"
        raise StagingError(f"tensor {spec.name}: {problem}")
    part = flat[spec.offset : spec.offset + spec.nbytes]
    if spec.offset % dtype.itemsize:  # possible when only some of the buckets were received
        part = part.clone()
    return part.view(dtype).reshape(spec.shape)
