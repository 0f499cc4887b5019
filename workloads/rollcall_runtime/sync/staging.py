"""Weights in flat host memory: how the sender snapshots them and a receiver stages them.

A model is one flat buffer whose layout its manifest describes. What is served changes only when
a version that was staged whole has been applied; it is never overwritten in place.
"""

import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from rollcall_protocol.ids import Version
from rollcall_protocol.manifest import Manifest, TensorSpec
from rollcall_runtime.sync.buffers import BufferPool, HostBuffer, Pin, PoolState
from rollcall_runtime.sync.errors import StagingError

_ALIGNMENT = 64  # bytes: a cache line, and a multiple of every dtype's size

NamedTensors = Iterable[tuple[str, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Weights:
    """One whole version. Valid while a pin on `buffer` is held."""

    version: Version
    manifest: Manifest
    buffer: HostBuffer

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Views by name, in the manifest's order, on the CPU; copy what must outlive the pin.

        Raises StagingError for a dtype that this torch does not have.
        """
        flat = _flat(self.buffer)
        for spec in self.manifest.tensors:
            yield spec.name, _view(flat, spec)


class PinnedWeights:
    """A version and the pin that keeps it whole; whoever has this releases it."""

    __slots__ = ("_pin", "weights")

    def __init__(self, weights: Weights, pin: Pin) -> None:
        self.weights = weights
        self._pin = pin

    def share(self) -> "PinnedWeights":
        """Another pin on the same version."""
        return PinnedWeights(self.weights, self.weights.buffer.pin())

    def release(self) -> None:
        """Give the buffer back; harmless when repeated."""
        self._pin.release()


class ServedWeights:
    """The version that this process can give to others; readers pin it against the next swap."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: PinnedWeights | None = None

    @property
    def version(self) -> Version | None:
        """What is served now."""
        with self._lock:
            return self._current.weights.version if self._current else None

    def swap(self, weights: PinnedWeights | None) -> None:
        """Serve `weights` from now on and own its pin; the old one is let go."""
        with self._lock:
            old, self._current = self._current, weights
        if old is not None:
            old.release()

    def pinned(self, version: Version) -> PinnedWeights | None:
        """A pin of the caller's own on `version`, or None when another version is served."""
        with self._lock:
            if self._current is None or self._current.weights.version != version:
                return None
            return self._current.share()


class Draft:
    """A copy of the weights at one moment, without checksums yet."""

    def __init__(
        self, version: Version, specs: tuple[TensorSpec, ...], pin: Pin, bucket_bytes: int
    ) -> None:
        self.version = version
        self._specs = specs
        self._pin = pin
        self._bucket_bytes = bucket_bytes

    def seal(self) -> PinnedWeights:
        """Compute the checksums (about 4 GB/s, outside the GIL) and pass the pin on."""
        buffer = self._pin.buffer
        manifest = Manifest(
            tensors=self._specs,
            total_bytes=buffer.nbytes,
            bucket_bytes=self._bucket_bytes,
            checksums=checksums(buffer.memory, self._bucket_bytes),
        )
        return PinnedWeights(Weights(self.version, manifest, buffer), self._pin)

    def discard(self) -> None:
        """Give the buffer back without sending it."""
        self._pin.release()


class Snapshotter:
    """Copies the trainer's tensors into host memory, which is all that training waits for.

    `buffers` is how many copies may exist: the one served to newcomers, the one being sent, and
    one for what an aborted session still holds.
    """

    def __init__(self, *, bucket_bytes: int, buffers: int = 3) -> None:
        self._bucket_bytes = bucket_bytes
        self._pool = BufferPool(limit=buffers)

    @property
    def state(self) -> PoolState:
        """Buffers made and in use, for metrics."""
        return self._pool.state

    def take(self, version: Version, tensors: NamedTensors, *, timeout: float) -> Draft:
        """Copy `tensors` (any device, any strides); the caller may change them afterwards.

        Waits while earlier versions are still being sent, and raises ExhaustedError after
        `timeout` seconds. `seal` the draft elsewhere: checksums are not the trainer's business.
        """
        named = [(name, tensor.detach()) for name, tensor in tensors]
        specs, total = lay_out(named)
        pin = self._pool.take(total, timeout=timeout)
        try:
            flat = _flat(pin.buffer)
            for spec, (_, tensor) in zip(specs, named, strict=True):
                _view(flat, spec).copy_(tensor)
        except BaseException:
            pin.release()
            raise
        return Draft(version, specs, pin, self._bucket_bytes)


class Stage:
    """A receiver's buffers: the served version, a staged one, and what is on its way in.

    `buffers` is how many copies of the model may exist. Two are enough while all is well; the
    others are for versions that aborted sessions or newcomers' downloads still pin.
    """

    def __init__(self, *, buffers: int = 4) -> None:
        self._pool = BufferPool(limit=buffers)
        self._lock = threading.Lock()
        self._staged: PinnedWeights | None = None
        self.served = ServedWeights()

    @property
    def state(self) -> PoolState:
        """Buffers made and in use, for metrics."""
        return self._pool.state

    @contextmanager
    def staging(
        self, version: Version, manifest: Manifest, *, timeout: float
    ) -> Iterator[HostBuffer]:
        """Lend a buffer to be filled. Leaving well stages it as `version`; an error drops it.

        Never the served buffer. Raises ExhaustedError when none is free within `timeout` seconds.
        """
        pin = self._pool.take(manifest.total_bytes, timeout=timeout)
        try:
            yield pin.buffer
        except BaseException:
            pin.release()
            raise
        self._stage(PinnedWeights(Weights(version, manifest, pin.buffer), pin))

    @contextmanager
    def committing(self, version: Version) -> Iterator[Weights]:
        """Lend the staged version to be applied. Leaving well serves it, an error drops it.

        Raises StagingError when `version` is not what is staged.
        """
        with self._lock:
            staged = self._staged
            if staged is None or staged.weights.version != version:
                found = staged.weights.version if staged else "nothing"
                raise StagingError(f"{version} is not staged, but {found}")
            self._staged = None
        try:
            yield staged.weights
        except BaseException:
            staged.release()
            raise
        self.served.swap(staged)

    def discard(self) -> None:
        """Forget what is staged."""
        self._stage(None)

    def _stage(self, weights: PinnedWeights | None) -> None:
        with self._lock:
            old, self._staged = self._staged, weights
        if old is not None:
            old.release()


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
    return tuple(zlib.crc32(memory[start : start + bucket_bytes]) for start in starts)


def _flat(buffer: HostBuffer) -> torch.Tensor:
    if buffer.nbytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(buffer.memory, dtype=torch.uint8)


def _view(flat: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    dtype = getattr(torch, spec.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise StagingError(f"tensor {spec.name}: this torch has no dtype {spec.dtype!r}")
    part = flat[spec.offset : spec.offset + spec.nbytes]
    return part.view(dtype).reshape(spec.shape)
