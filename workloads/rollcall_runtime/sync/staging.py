"""Weights in flat host memory: how the sender snapshots them and a receiver stages them.

A model is one flat buffer whose layout its manifest describes. What is served changes only when
a version that was staged whole has been applied; it is never overwritten in place.
"""

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from zlib_ng.zlib_ng import crc32

from rollcall_protocol.ids import Version
from rollcall_protocol.manifest import Manifest, TensorSpec
from rollcall_runtime.sync.buffers import BufferPool, HostBuffer, Pin, PoolState
from rollcall_runtime.sync.errors import StagingError, SyncError
from rollcall_runtime.sync.spare import Spare

_ALIGNMENT = 64  # bytes: a cache line, and a multiple of every dtype's size
_SPARE_BYTES = 512 << 20  # buffers that are smaller than this together are never waited for

NamedTensors = Iterable[tuple[str, torch.Tensor]]


class Snapshot:
    """One whole set of weights, and the pin that keeps its buffer from being overwritten.

    Released by its owner, or when it is dropped.
    """

    __slots__ = ("_pin", "manifest")

    def __init__(self, manifest: Manifest, pin: Pin) -> None:
        self.manifest = manifest
        self._pin = pin

    @property
    def buffer(self) -> HostBuffer:
        """The flat buffer that the manifest describes."""
        return self._pin.buffer

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Tensors by name, in the manifest's order, on the CPU; copy what must outlive this.

        Views, but for those that came in pieces, which are put together one at a time. Raises
        StagingError for a dtype that this torch does not have.
        """
        flat = _flat(self.buffer)
        pieces: dict[str, list[TensorSpec]] = {}
        for spec in self.manifest.tensors:
            pieces.setdefault(spec.name, []).append(spec)
        for name, specs in pieces.items():
            views = [_view(flat, spec) for spec in specs]
            yield name, views[0] if len(views) == 1 else torch.cat(views)

    def share(self) -> "Snapshot":
        """The same weights with a pin of their own."""
        return Snapshot(self.manifest, self.buffer.pin())

    def release(self) -> None:
        """Let the buffer go; harmless when repeated."""
        self._pin.release()


class Draft:
    """A copy of the weights at one moment, without checksums yet; `copies` are not in it yet."""

    def __init__(
        self, specs: tuple[TensorSpec, ...], pin: Pin, bucket_bytes: int,
        copies: Sequence[torch.Tensor] = (),
    ) -> None:  # fmt: skip
        self._specs = specs
        self._pin = pin
        self._bucket_bytes = bucket_bytes
        self._copies = copies

    def seal(self) -> Snapshot:
        """Compute the checksums (outside the GIL) and hand the buffer on."""
        buffer = self._pin.buffer
        if self._copies:
            _copy(self._copies, buffer, self._specs)
            self._copies = ()
        manifest = Manifest(
            tensors=self._specs,
            total_bytes=buffer.nbytes,
            bucket_bytes=self._bucket_bytes,
            checksums=checksums(buffer.memory, self._bucket_bytes),
        )
        return Snapshot(manifest, self._pin)


class Snapshotter:
    """Copies the trainer's tensors into host memory, which is all that training waits for.

    `buffers` is how many copies may exist: the one kept for newcomers, the one being sent, and one
    for what an aborted session still holds. Small models may have more, up to `spare_bytes`. With
    `on_device` the copy is made where the tensors are, which on a GPU is many times faster than to
    the host and takes as much of its memory; it moves to host memory when the draft is sealed.
    """

    def __init__(
        self, *, bucket_bytes: int, buffers: int = 3, spare_bytes: int = _SPARE_BYTES,
        on_device: bool = False,
    ) -> None:  # fmt: skip
        self._bucket_bytes, self._on_device = bucket_bytes, on_device
        self._pool = BufferPool(limit=buffers, spare_bytes=spare_bytes)

    @property
    def state(self) -> PoolState:
        """Buffers made and in use, for metrics."""
        return self._pool.state

    def take(self, tensors: NamedTensors, *, timeout: float) -> Draft:
        """Copy `tensors` (any device, any strides); the caller may change them afterwards.

        Waits while all buffers are in use (earlier snapshots not released, sends not ended), and
        raises ExhaustedError after `timeout` seconds. `seal` the draft in another thread: checksums
        are not the trainer's business.
        """
        named = [(name, tensor.detach()) for name, tensor in tensors]
        specs, total = lay_out(named)
        pin = self._pool.take(total, timeout=timeout)
        weights = [weight for _, weight in named]
        try:
            if self._on_device:
                copies = [weight.clone() for weight in weights]
                return Draft(specs, pin, self._bucket_bytes, copies)
            _copy(weights, pin.buffer, specs)
        except BaseException:
            pin.release()
            raise
        return Draft(specs, pin, self._bucket_bytes)


class Stage:
    """A receiver's weights: what it serves, what is staged, and what is on its way in.

    `buffers` is how many copies of the model may exist. Two are enough while all is well; the
    others are for what aborted sessions or newcomers' downloads still hold. Small models may have
    more, up to `spare_bytes`.
    """

    def __init__(self, *, buffers: int = 4, spare_bytes: int = _SPARE_BYTES) -> None:
        self._pool = BufferPool(limit=buffers, spare_bytes=spare_bytes)
        self._spare = Spare(self._pool)
        self._lock = threading.Lock()
        self._staged: tuple[Version, Snapshot] | None = None
        self._served: tuple[Version, Snapshot] | None = None

    @property
    def state(self) -> PoolState:
        """Buffers made and in use, for metrics."""
        return self._pool.state

    @property
    def served(self) -> Version | None:
        """The version committed last."""
        with self._lock:
            return self._served[0] if self._served else None

    def held(self, version: Version) -> Snapshot | None:
        """The served weights with a pin of the caller's own; None if they are not `version`."""
        with self._lock:
            if self._served is None or self._served[0] != version:
                return None
            return self._served[1].share()

    @contextmanager
    def staging(
        self, version: Version, manifest: Manifest, *, timeout: float
    ) -> Iterator[HostBuffer]:
        """Lend a buffer to be filled. Leaving well stages it as `version`; an error drops it.

        Never the served buffer. Raises ExhaustedError when none is free within `timeout` seconds.
        """
        self._spare.drop()
        pin = self._pool.take(manifest.total_bytes, timeout=timeout)
        with self._filling(pin, version, manifest):
            yield pin.buffer

    @contextmanager
    def patching(
        self, version: Version, manifest: Manifest, *, base: Version, timeout: float
    ) -> Iterator[tuple[HostBuffer, Snapshot | None]]:
        """As `staging`, for changes of `base`: a buffer that holds it already and None, or a buffer
        and what is to be copied into it first.

        Raises SyncError when `base` is not served: the whole version is wanted then.
        """
        held = self.held(base)
        if held is None:
            raise SyncError(f"{self.served} is served, not {base}, the delta's base")
        try:
            spare = self._spare.take(base)
            pin = spare or self._pool.take(manifest.total_bytes, timeout=timeout)
            with self._filling(pin, version, manifest):
                yield pin.buffer, None if spare else held
        finally:
            held.release()

    def prepare(self) -> None:
        """Copy what is served to where the next delta goes, so that nobody waits for the copy."""
        with self._lock:
            if self._served is None:
                return
            version, weights = self._served[0], self._served[1].share()
        try:
            self._spare.make(version, weights.buffer)
        finally:
            weights.release()

    @contextmanager
    def _filling(self, pin: Pin, version: Version, manifest: Manifest) -> Iterator[None]:
        try:
            yield
        except BaseException:
            pin.release()
            raise
        with self._lock:
            old, self._staged = self._staged, (version, Snapshot(manifest, pin))
        _release(old)

    @contextmanager
    def committing(self, version: Version) -> Iterator[Snapshot]:
        """Lend the staged version to be applied. Leaving well serves it; an error drops it.

        Raises StagingError when `version` is not what is staged.
        """
        with self._lock:
            staged = self._staged
            if staged is None or staged[0] != version:
                raise StagingError(f"{version} is not staged; {staged[0] if staged else 'none'} is")
            self._staged = None
        try:
            yield staged[1]
        except BaseException:
            _release(staged)
            raise
        with self._lock:
            old, self._served = self._served, staged
        _release(old)

    def discard(self) -> None:
        """Forget what is staged."""
        with self._lock:
            old, self._staged = self._staged, None
        _release(old)


def _release(held: tuple[Version, Snapshot] | None) -> None:
    if held is not None:
        held[1].release()


def lay_out(named: Sequence[tuple[str, torch.Tensor]]) -> tuple[tuple[TensorSpec, ...], int]:
    """Where each tensor goes in the flat buffer, and the buffer's length. Names are unique."""
    specs: list[TensorSpec] = []
    end = 0
    for name, tensor in named:
        nbytes = tensor.numel() * tensor.element_size()
        dtype = str(tensor.dtype).removeprefix("torch.")
        specs.append(TensorSpec(name, dtype, tuple(tensor.shape), end, nbytes))
        end += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
    if len({spec.name for spec in specs}) != len(specs):
        raise ValueError("two tensors have the same name")
    return tuple(specs), end


def checksums(memory: memoryview, bucket_bytes: int) -> tuple[int, ...]:
    """CRC-32 of each bucket."""
    starts = range(0, len(memory), bucket_bytes)
    return tuple(crc32(memory[start : start + bucket_bytes]) for start in starts)


def _copy(tensors: Sequence[torch.Tensor], buffer: HostBuffer, specs: Sequence[TensorSpec]) -> None:
    flat = _flat(buffer)
    for spec, tensor in zip(specs, tensors, strict=True):
        _view(flat, spec).copy_(tensor)


def _flat(buffer: HostBuffer) -> torch.Tensor:
    if buffer.nbytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(buffer.memory, dtype=torch.uint8)


def _view(flat: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    dtype = getattr(torch, spec.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise StagingError(f"tensor {spec.name}: this torch has no dtype {spec.dtype!r}")
    part = flat[spec.offset : spec.offset + spec.nbytes]
    if spec.offset % dtype.itemsize:  # behind some of the buckets of a whole
        part = part.clone()
    return part.view(dtype).reshape(spec.shape)
