"""A receiver's weights: what it serves, what is staged, and a copy ahead of the next delta.

What is served changes only when a version that was staged whole has been applied; it is never
overwritten in place.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from rollcall_protocol.wire.ids import Version
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.errors import ExhaustedError, StagingError, SyncError
from rollcall_runtime.sync.memory.buffers import BufferPool, BufferPoolState, FlatBuffer, Pin
from rollcall_runtime.sync.memory.device_buffers import DeviceAllocator, maker
from rollcall_runtime.sync.weights.snapshots import SPARE_BYTES, WeightSnapshot

_PIECE_BYTES = 16 << 20  # copied between two looks at whether the copy is still wanted


class StagingArea:
    """A receiver's weights: what it serves, what is staged, and what is on its way in.

    `buffers` is how many copies of the model may exist. Two are enough while all is well; the
    others are for what aborted sessions or newcomers' downloads still hold. Small models may have
    more, up to `spare_bytes`. They are in host memory, or in `memory`.
    """

    def __init__(
        self,
        *,
        buffers: int = 4,
        spare_bytes: int = SPARE_BYTES,
        memory: DeviceAllocator | None = None,
    ) -> None:
        make = maker(memory) if memory is not None else None
        self._pool = BufferPool(limit=buffers, spare_bytes=spare_bytes, make=make)
        self._spare = Spare(self._pool)
        self._lock = threading.Lock()
        self._staged: tuple[Version, WeightSnapshot] | None = None
        self._served: tuple[Version, WeightSnapshot] | None = None

    @property
    def state(self) -> BufferPoolState:
        """Buffers made and in use, for metrics."""
        return self._pool.state

    @property
    def served(self) -> Version | None:
        """The version committed last."""
        with self._lock:
            return self._served[0] if self._served else None

    def held(self, version: Version) -> WeightSnapshot | None:
        """The served weights with a pin of the caller's own; None if they are not `version`."""
        with self._lock:
            if self._served is None or self._served[0] != version:
                return None
            return self._served[1].share()

    @contextmanager
    def staging(
        self, version: Version, manifest: WeightManifest, *, timeout: float
    ) -> Iterator[FlatBuffer]:
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
    ) -> Iterator[tuple[FlatBuffer, WeightSnapshot | None]]:
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
            old, self._staged = self._staged, (version, WeightSnapshot(manifest, pin))
        _release(old)

    @contextmanager
    def committing(self, version: Version) -> Iterator[WeightSnapshot]:
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


class Spare:
    """At most one copy, in a buffer of `pool`. Any thread may call anything."""

    def __init__(self, pool: BufferPool) -> None:
        self._pool = pool
        self._lock = threading.Lock()  # held while a copy is made
        self._unwanted = threading.Event()
        self._copy: tuple[Version, Pin] | None = None

    def make(self, version: Version, weights: FlatBuffer) -> None:
        """Copy `weights`, which are `version`; nothing when no buffer is free."""
        with self._lock:
            self._unwanted.clear()
            self._release()
            try:
                pin = self._pool.take(weights.nbytes, timeout=0)
            except ExhaustedError:
                return
            if _copy(weights, pin.buffer, stop=self._unwanted.is_set):
                self._copy = version, pin
            else:
                pin.release()

    def take(self, version: Version) -> Pin | None:
        """The copy, to be written to, if it is of `version`; waits while one is made."""
        with self._lock:
            copy = self._copy
            if copy is not None and copy[0] == version:
                self._copy = None
                return copy[1]
            self._release()
            return None

    def drop(self) -> None:
        """Let the buffer go: it is needed for something else."""
        self._unwanted.set()
        with self._lock:
            self._release()

    def _release(self) -> None:
        if self._copy is not None:
            self._copy[1].release()
            self._copy = None


def _copy(source: FlatBuffer, target: FlatBuffer, *, stop: Callable[[], bool]) -> bool:
    """Whether all of it was copied. By numpy, which lets other threads run."""
    old, new = (np.frombuffer(buffer.memory, np.uint8) for buffer in (source, target))
    for start in range(0, len(old), _PIECE_BYTES):
        if stop():
            return False
        np.copyto(new[start : start + _PIECE_BYTES], old[start : start + _PIECE_BYTES])
    return True


def _release(held: tuple[Version, WeightSnapshot] | None) -> None:
    if held is not None:
        held[1].release()
