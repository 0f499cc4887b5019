"""A receiver's weights: the served version, the staged one, and a copy for the next delta.

What is served changes only when a completely staged version was committed; it is never overwritten
in place.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from rollcall_protocol.wire.ids import Version
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.errors import ExhaustedError, StagingError, SyncError
from rollcall_runtime.sync.memory.buffers import (
    BufferFactory,
    BufferHold,
    BufferPool,
    BufferPoolState,
    FlatBuffer,
)
from rollcall_runtime.sync.memory.device_buffers import DeviceAllocator, device_buffer_factory
from rollcall_runtime.sync.memory.shared_buffers import shared_buffer
from rollcall_runtime.sync.weights.snapshots import SPARE_BYTES, WeightSnapshot

_PIECE_BYTES = 16 << 20  # copied between two looks at whether the copy is still wanted


class StagingArea:
    """A receiver's weights: the served version, the staged one, and the one being received.

    `buffers` is how many copies of the model may exist. Two are enough without failures; aborted
    sessions and downloads by newcomers may hold the others. Small models may have
    more, up to `spare_bytes`. They are in host memory, `shared` with other processes of this
    machine or not, or in `memory`.
    """

    def __init__(
        self,
        *,
        buffers: int = 4,
        spare_bytes: int = SPARE_BYTES,
        memory: DeviceAllocator | None = None,
        shared: bool = False,
    ) -> None:
        make: BufferFactory | None = shared_buffer if shared else None
        if memory is not None:
            make = device_buffer_factory(memory)
        self._pool = BufferPool(limit=buffers, spare_bytes=spare_bytes, make=make)
        self._delta_base = DeltaBaseCopy(self._pool)
        self._lock = threading.Lock()
        self._staged: tuple[Version, WeightSnapshot] | None = None
        self._served: tuple[Version, WeightSnapshot] | None = None

    @property
    def state(self) -> BufferPoolState:
        """How many buffers exist and are in use, for metrics."""
        return self._pool.state

    @property
    def served(self) -> Version | None:
        """The version committed last."""
        with self._lock:
            return self._served[0] if self._served else None

    def held(self, version: Version) -> WeightSnapshot | None:
        """The served weights if they are `version`, else None; the caller must release them."""
        with self._lock:
            if self._served is None or self._served[0] != version:
                return None
            return self._served[1].share()

    @contextmanager
    def staged(self, version: Version) -> Iterator[WeightSnapshot]:
        """Lend the staged version for reading; StagingError when it is not `version`."""
        with self._lock:
            weights = self._staged_as(version).share()
        try:
            yield weights
        finally:
            weights.release()

    @contextmanager
    def staging(
        self, version: Version, manifest: WeightManifest, *, timeout: float
    ) -> Iterator[FlatBuffer]:
        """Lend a buffer to fill. Leaving without error stages it as `version`; an error drops it.

        Never the served buffer. Raises ExhaustedError when none is free within `timeout` seconds.
        """
        self._delta_base.drop()
        hold = self._pool.take(manifest.total_bytes, timeout=timeout)
        with self._filling(hold, version, manifest):
            yield hold.buffer

    @contextmanager
    def patching(
        self, version: Version, manifest: WeightManifest, *, base: Version, timeout: float
    ) -> Iterator[tuple[FlatBuffer, WeightSnapshot | None]]:
        """As `staging`, for a delta of `base`: yields a buffer that has base's bytes already and
        None, or a buffer and the snapshot whose bytes must be copied into it first.

        Raises SyncError when `base` is not served; fetch the whole version instead.
        """
        held = self.held(base)
        if held is None:
            raise SyncError(f"the delta's base is {base}, but {self.served} is served")
        try:
            prepared = self._delta_base.take(base)
            hold = prepared or self._pool.take(manifest.total_bytes, timeout=timeout)
            with self._filling(hold, version, manifest):
                yield hold.buffer, None if prepared else held
        finally:
            held.release()

    def prepare(self) -> None:
        """Copy the served weights to the next delta's buffer ahead of time."""
        with self._lock:
            if self._served is None:
                return
            version, weights = self._served[0], self._served[1].share()
        try:
            self._delta_base.make(version, weights.buffer)
        finally:
            weights.release()

    @contextmanager
    def _filling(
        self, hold: BufferHold, version: Version, manifest: WeightManifest
    ) -> Iterator[None]:
        try:
            yield
        except BaseException:
            hold.release()
            raise
        with self._lock:
            old, self._staged = self._staged, (version, WeightSnapshot(manifest, hold))
        _release(old)

    @contextmanager
    def committing(self, version: Version) -> Iterator[WeightSnapshot]:
        """Lend the staged version to apply it. Leaving without error serves it; an error drops it.

        Raises StagingError when `version` is not what is staged.
        """
        with self._lock:
            staged = version, self._staged_as(version)
            self._staged = None
        try:
            yield staged[1]
        except BaseException:
            _release(staged)
            raise
        with self._lock:
            old, self._served = self._served, staged
        _release(old)

    def _staged_as(self, version: Version) -> WeightSnapshot:
        staged = self._staged
        if staged is None or staged[0] != version:
            raise StagingError(
                f"{version} is not staged; staged is {staged[0] if staged else 'no version'}"
            )
        return staged[1]

    def discard(self) -> None:
        """Drop the staged version."""
        with self._lock:
            old, self._staged = self._staged, None
        _release(old)


class DeltaBaseCopy:
    """A copy of the served weights, made ahead of time in a buffer of `pool`.

    A delta is applied to a copy of the weights that it is based on. The copy is made here before a
    delta arrives, in the buffer that the next version uses anyway. Thread-safe.
    """

    def __init__(self, pool: BufferPool) -> None:
        self._pool = pool
        self._lock = threading.Lock()  # held while a copy is made
        self._unwanted = threading.Event()
        self._copy: tuple[Version, BufferHold] | None = None

    def make(self, version: Version, weights: FlatBuffer) -> None:
        """Copy `weights`, which are `version`; does nothing when no buffer is free."""
        with self._lock:
            self._unwanted.clear()
            self._release()
            try:
                hold = self._pool.take(weights.nbytes, timeout=0)
            except ExhaustedError:
                return
            if _copy(weights, hold.buffer, stop=self._unwanted.is_set):
                self._copy = version, hold
            else:
                hold.release()

    def take(self, version: Version) -> BufferHold | None:
        """The copy, for writing, if it is of `version`; waits while one is being made."""
        with self._lock:
            copy = self._copy
            if copy is not None and copy[0] == version:
                self._copy = None
                return copy[1]
            self._release()
            return None

    def drop(self) -> None:
        """Release the buffer, which is needed for something else."""
        self._unwanted.set()
        with self._lock:
            self._release()

    def _release(self) -> None:
        if self._copy is not None:
            self._copy[1].release()
            self._copy = None


def _copy(source: FlatBuffer, target: FlatBuffer, *, stop: Callable[[], bool]) -> bool:
    """Whether all of it was copied. Uses numpy, which releases the GIL."""
    old, new = (np.frombuffer(buffer.memory, np.uint8) for buffer in (source, target))
    for start in range(0, len(old), _PIECE_BYTES):
        if stop():
            return False
        np.copyto(new[start : start + _PIECE_BYTES], old[start : start + _PIECE_BYTES])
    return True


def _release(held: tuple[Version, WeightSnapshot] | None) -> None:
    if held is not None:
        held[1].release()
