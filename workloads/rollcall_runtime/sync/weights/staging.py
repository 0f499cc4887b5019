"""Weights in a flat buffer: how the sender snapshots them and a receiver stages them.

A model is one flat buffer whose layout its manifest describes. What is served changes only when
a version that was staged whole has been applied; it is never overwritten in place.
"""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from rollcall_protocol.wire.ids import Version
from rollcall_protocol.wire.weight_manifest import TensorSpec, WeightManifest
from rollcall_runtime.sync.errors import StagingError, SyncError
from rollcall_runtime.sync.memory.buffers import BufferPool, Pin, PoolState, WholeBuffer
from rollcall_runtime.sync.memory.device_buffers import DeviceMemory, maker
from rollcall_runtime.sync.weights.layout import fill, lay_out, tensor_in
from rollcall_runtime.sync.weights.sealing import checksums_of
from rollcall_runtime.sync.weights.spare import Spare

_SPARE_BYTES = 512 << 20  # buffers that are smaller than this together are never waited for

_HOST = frozenset({"cpu"})
_DEVICE_BUFFERS = 2

NamedTensors = Iterable[tuple[str, torch.Tensor]]


class Snapshot:
    """One whole set of weights, and the pins that keep its buffers from being overwritten: one, or
    one in device memory and one with the same bytes in host memory.

    Released by its owner, or when it is dropped.
    """

    __slots__ = ("_copy", "_pin", "manifest")

    def __init__(self, manifest: WeightManifest, pin: Pin, copy: Pin | None = None) -> None:
        self.manifest = manifest
        self._pin, self._copy = pin, copy

    @property
    def buffer(self) -> WholeBuffer:
        """The flat buffer that the manifest describes, on the device if it is there."""
        return self._pin.buffer

    def buffer_in(self, memories: frozenset[str]) -> WholeBuffer:
        """The buffer in one of these memories (torch device types); StagingError if none is."""
        for pin in (self._pin, self._copy):
            if pin is not None and pin.buffer.device in memories:
                return pin.buffer
        wanted = ", ".join(sorted(memories))
        raise StagingError(f"the weights are in memory of the {self.buffer.device}, not {wanted}")

    @property
    def host(self) -> WholeBuffer:
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
            views = [tensor_in(self.buffer, spec) for spec in specs]
            yield name, views[0] if len(views) == 1 else torch.cat(views)

    def share(self) -> "Snapshot":
        """The same weights with a pin of their own."""
        copy = self._copy.buffer.pin() if self._copy else None
        return Snapshot(self.manifest, self.buffer.pin(), copy)

    def release(self) -> None:
        """Let the buffers go; harmless when repeated."""
        self._pin.release()
        if self._copy is not None:
            self._copy.release()


class Draft:
    """A copy of the weights at one moment, without checksums yet.

    On a device, `copy` is a host buffer that is to get the bytes too; all that is left if not
    `stays`.
    """

    def __init__(
        self, specs: tuple[TensorSpec, ...], pin: Pin, copy: Pin | None = None, *,
        bucket_bytes: int, stays: bool = True,
    ) -> None:  # fmt: skip
        self._specs = specs
        self._pin, self._copy, self._stays = pin, copy, stays
        self._bucket_bytes = bucket_bytes

    def seal(self) -> Snapshot:
        """Compute the checksums (outside the GIL) and hand the buffers on; once."""
        buffer = self._pin.buffer
        copy = self._copy.buffer if self._copy else None
        sums = checksums_of(buffer, self._bucket_bytes, copy=copy)
        manifest = WeightManifest(self._specs, buffer.nbytes, self._bucket_bytes, sums)
        if self._copy is None or self._stays:
            return Snapshot(manifest, self._pin, self._copy)
        self._pin.release()
        return Snapshot(manifest, self._copy)


class Snapshotter:
    """Copies the trainer's tensors, which is all that training waits for.

    `buffers` is how many copies in host memory may exist: the one kept for newcomers, the one being
    sent, and one for what an aborted session still holds. Small models may have more, up to
    `spare_bytes`.

    With device memory the copy is made there, in one of `device_buffers` (small models again may
    have more), which on a GPU is many times faster than to the host. `keep` names the memories
    (torch device types) in which it stays once its draft is sealed, by default the device's alone.
    """

    def __init__(
        self, *, bucket_bytes: int, buffers: int = 3, spare_bytes: int = _SPARE_BYTES,
        memory: DeviceMemory | None = None, keep: frozenset[str] = frozenset(),
        device_buffers: int = _DEVICE_BUFFERS,
    ) -> None:  # fmt: skip
        self._bucket_bytes, self._stays = bucket_bytes, True
        host = BufferPool(limit=buffers, spare_bytes=spare_bytes)
        self._pool = host
        self._copies: BufferPool | None = None
        if memory is not None:
            kept = keep or {memory.device}
            if not kept <= {"cpu", memory.device}:
                raise ValueError(f"weights on the {memory.device} cannot be kept in {set(kept)}")
            self._pool = BufferPool(
                limit=device_buffers, spare_bytes=spare_bytes, make=maker(memory)
            )
            self._copies = host if "cpu" in kept else None
            self._stays = memory.device in kept

    @property
    def _pools(self) -> list[BufferPool]:
        return [self._pool] if self._copies is None else [self._pool, self._copies]

    @property
    def state(self) -> PoolState:
        """Buffers made and in use, for metrics."""
        states = [pool.state for pool in self._pools]
        return PoolState(sum(s.buffers for s in states), sum(s.pinned for s in states))

    def take(self, tensors: NamedTensors, *, timeout: float) -> Draft:
        """Copy `tensors` (any device, any strides); the caller may change them afterwards.

        Waits while all buffers are in use (earlier snapshots not released, sends not ended), and
        raises ExhaustedError after `timeout` seconds. `seal` the draft in another thread: checksums
        are not the trainer's business.
        """
        named = [(name, tensor.detach()) for name, tensor in tensors]
        specs, total = lay_out(named)
        pins: list[Pin] = []
        try:
            for pool in self._pools:
                pins.append(pool.take(total, timeout=timeout))  # noqa: PERF401 - kept on an error
            fill(pins[0].buffer, zip(specs, (weight for _, weight in named), strict=True))
        except BaseException:
            for pin in pins:
                pin.release()
            raise
        return Draft(specs, *pins, bucket_bytes=self._bucket_bytes, stays=self._stays)


class Stage:
    """A receiver's weights: what it serves, what is staged, and what is on its way in.

    `buffers` is how many copies of the model may exist. Two are enough while all is well; the
    others are for what aborted sessions or newcomers' downloads still hold. Small models may have
    more, up to `spare_bytes`. They are in host memory, or in `memory`.
    """

    def __init__(
        self, *, buffers: int = 4, spare_bytes: int = _SPARE_BYTES,
        memory: DeviceMemory | None = None,
    ) -> None:  # fmt: skip
        make = maker(memory) if memory is not None else None
        self._pool = BufferPool(limit=buffers, spare_bytes=spare_bytes, make=make)
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
        self, version: Version, manifest: WeightManifest, *, timeout: float
    ) -> Iterator[WholeBuffer]:
        """Lend a buffer to be filled. Leaving well stages it as `version`; an error drops it.

        Never the served buffer. Raises ExhaustedError when none is free within `timeout` seconds.
        """
        self._spare.drop()
        pin = self._pool.take(manifest.total_bytes, timeout=timeout)
        with self._filling(pin, version, manifest):
            yield pin.buffer

    @contextmanager
    def patching(
        self, version: Version, manifest: WeightManifest, *, base: Version, timeout: float
    ) -> Iterator[tuple[WholeBuffer, Snapshot | None]]:
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
    def _filling(self, pin: Pin, version: Version, manifest: WeightManifest) -> Iterator[None]:
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
