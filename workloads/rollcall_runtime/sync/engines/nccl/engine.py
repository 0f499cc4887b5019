"""NVIDIA GPUs: an NCCL communicator for each session, from an id that the sender mints.

No torch process group and no default world: the library is called by ctypes. Weights in device
memory are sent from where they are and arrive where they are staged; those in host memory pass
through pieces of device memory, at each member by itself. NCCL's calls do not block,
what hangs on the device is ended by ncclCommAbort, on the thread of the aborted session.

Tested on this code's side of the C interface, against a double of NCCL and of the CUDA runtime.
Never run on a GPU. What the double cannot tell: speed, NCCL's own choice of network interfaces
(`interface` sets NCCL_SOCKET_IFNAME unless that is set, and is too late if this process has used
NCCL before), and how long a real ncclCommShrink or ncclCommAbort takes. Bootstrap and sockets of
NCCL listen where NCCL decides.
"""

import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rollcall_protocol.wire.ids import SessionId
from rollcall_protocol.wire.messages import Seat
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.bindings.c_library import LibraryError, address_of
from rollcall_runtime.sync.bindings.cuda_library import CudaLibrary
from rollcall_runtime.sync.bindings.nccl_library import NcclLibrary
from rollcall_runtime.sync.bucket_transfer import BucketTransfer
from rollcall_runtime.sync.engine import EngineKind, Role, SyncSettings
from rollcall_runtime.sync.engines.common.threaded_engine import (
    ThreadedEngine,
    ThreadedSession,
    time_left,
)
from rollcall_runtime.sync.engines.nccl.communicator import Builder, Communicator
from rollcall_runtime.sync.engines.nccl.device_slots import Device, Slot
from rollcall_runtime.sync.errors import JoinFailedError, TransferFailedError
from rollcall_runtime.sync.memory.buffers import Buffer, Window
from rollcall_runtime.sync.rendezvous import Rendezvous

log = logging.getLogger(__name__)
_REST_SECONDS = 0.0002

NcclLibrary()  # an ImportError here is why the engine cannot be used
CudaLibrary()


@dataclass(frozen=True, slots=True)
class NcclSettings(SyncSettings):
    """`library` and `cuda_runtime` are paths, empty for those that torch uses. `device` is the
    index of a visible GPU; below 0: LOCAL_RANK's, or the first. `in_flight` pieces of
    `operation_bytes` of device memory are held for each session. `pin_memory` pins host buffers.

    The communicator of a session that ended is kept for `reuse_seconds`, so that the next session
    may shrink or grow it; what hangs in it occupies the GPU for so long. 0 ends it at once.
    """

    library: str = ""
    cuda_runtime: str = ""
    device: int = -1
    pin_memory: bool = True
    reuse_seconds: float = 2.0

    def __post_init__(self) -> None:
        SyncSettings.__post_init__(self)  # a slotted class has no zero-argument super()
        if self.reuse_seconds < 0:
            raise ValueError("reuse_seconds must not be negative")


class NcclEngine(ThreadedEngine):
    """Broadcast between GPUs, each of which belongs to one member: NCCL refuses two on one."""

    name = "nccl"
    kind = EngineKind.GROUP
    devices = frozenset({"cuda"})
    package = "nvidia-nccl-cu13"
    memories = frozenset({"cpu", "cuda"})
    settings_type = NcclSettings

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[str, tuple[Communicator, threading.Timer]] = {}
        self._device: Device | None = None
        self._builder: Builder | None = None

    @property
    def device(self) -> Device:
        """The GPU; the engine must be open."""
        if self._device is None:
            raise RuntimeError("the engine is not open")
        return self._device

    @property
    def builder(self) -> Builder:
        """What makes communicators; the engine must be open."""
        if self._builder is None:
            raise RuntimeError("the engine is not open")
        return self._builder

    @property
    def nccl_settings(self) -> NcclSettings:
        """What `open` was given."""
        return self.settings_as(NcclSettings)

    def keep(self, group: str, communicator: Communicator) -> None:
        """A session has ended; its communicator may serve the next one of the group."""
        seconds = self.nccl_settings.reuse_seconds
        if seconds == 0:
            self.builder.end(communicator)
            return
        timer = threading.Timer(seconds, self._expire, args=(group, communicator))
        timer.daemon = True
        with self._lock:
            before = self._kept.get(group)
            self._kept[group] = (communicator, timer)
        timer.start()
        self._end(before)

    def take(self, group: str) -> Communicator | None:
        """The communicator that the group's last session had, now the caller's."""
        with self._lock:
            kept = self._kept.pop(group, None)
        if kept is None:
            return None
        kept[1].cancel()
        return kept[0]

    def _make(
        self, *, group: str, session: SessionId, seats: Sequence[Seat], rank: int
    ) -> "NcclSession":
        return NcclSession(group=group, session=session, seats=seats, rank=rank, engine=self)

    def _start(self, role: Role) -> dict[str, Any]:  # noqa: ARG002
        settings = self.nccl_settings
        if settings.interface:
            os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={settings.interface}")
        nccl, cuda = NcclLibrary(settings.library), CudaLibrary(settings.cuda_runtime)
        index, count = settings.device, cuda.devices()
        if index < 0:
            index = int(os.environ.get("LOCAL_RANK", "0")) % max(count, 1)
        if index >= count:
            raise ValueError(f"there is no GPU {index}: this process sees {count}")
        self._device = Device(
            cuda, index=index, slots=settings.in_flight, slot_bytes=settings.operation_bytes
        )
        self._builder = Builder(nccl, self._device)
        return {}

    def _stop(self) -> None:
        with self._lock:
            kept = list(self._kept.values())
            self._kept.clear()
        for each in kept:
            self._end(each)
        self.device.close()

    def _expire(self, group: str, communicator: Communicator) -> None:
        with self._lock:
            kept = self._kept.get(group)
            if kept is None or kept[0] is not communicator:
                return  # taken, or replaced and ended
            del self._kept[group]
        self._end(kept)

    def _end(self, kept: tuple[Communicator, threading.Timer] | None) -> None:
        if kept is None:
            return
        kept[1].cancel()
        try:
            self.builder.end(kept[0])
        except LibraryError:
            log.exception("an NCCL communicator could not be freed")


class _Flight:
    """A broadcast in flight, and at a receiver the copy to the host (`chunk`) that follows."""

    def __init__(
        self, session: "NcclSession", slot: Slot, chunk: memoryview | None, seconds: float
    ) -> None:
        self._session, self._slot, self._chunk = session, slot, chunk
        self._deadline = time.monotonic() + seconds

    def wait(self) -> None:
        """Until the bytes are there; AbortedError, TimedOutError or LibraryError."""
        self._session.finish(self._slot, self._chunk, self._deadline)


class NcclSession(ThreadedSession):
    """One communicator."""

    def __init__(
        self,
        *,
        group: str,
        session: SessionId,
        seats: Sequence[Seat],
        rank: int,
        engine: NcclEngine,
    ) -> None:
        super().__init__(group=group, session=session, seats=seats, rank=rank, engine=engine)
        self._engine = engine
        self._group = group
        self._communicator: Communicator | None = None
        self._mover = BucketTransfer(
            start=self._start,
            stop=self._check,
            settings=self.settings,
            landed=self._landed,
            direct=self._direct,
        )

    def _connect(self, rendezvous: Rendezvous, deadline: float) -> None:
        self._engine.device.use()
        try:
            self._communicator = self._engine.builder.build(
                rendezvous,
                parent=self._engine.take(self._group),
                rank=self.rank,
                size=len(self.seats),
                deadline=deadline,
                rest=self._rest,
            )
        except LibraryError as error:
            raise JoinFailedError(f"{self.name}: {error}") from error

    def _send(self, buffer: Buffer, manifest: WeightManifest, deadline: float) -> None:
        with self._ready(buffer):
            self._mover.send(buffer, manifest, deadline)

    def _take(self, buffer: Buffer, manifest: WeightManifest, deadline: float) -> None:
        with self._ready(buffer):
            self._mover.receive(buffer, manifest, deadline)

    def _disconnect(self) -> None:
        communicator, self._communicator = self._communicator, None
        try:
            if communicator is not None:
                self._engine.keep(self._group, communicator)
        finally:
            # Waits for nothing: what hangs does not touch host memory, and the communicator has
            # pins of its own for device memory.
            self._mover.drain()

    @contextmanager
    def _ready(self, buffer: Buffer) -> Iterator[None]:
        """For a transfer: device memory stays pinned as long as anything of it is in flight."""
        self._engine.device.use()
        if buffer.device == "cpu":
            self._pin_for_copies(buffer)
            yield
            return
        communicator = self._joined
        pin = buffer.pin()
        communicator.pins.append(pin)
        try:
            yield
        finally:
            if communicator.begun == communicator.ended:
                communicator.pins.remove(pin)
                pin.release()

    def _pin_for_copies(self, buffer: Buffer) -> None:
        if not self._engine.nccl_settings.pin_memory:
            return
        try:
            self._engine.device.pin(buffer)
        except LibraryError as error:
            log.warning("copies will be slower: %s", error)

    @property
    def _joined(self) -> Communicator:
        if self._communicator is None:
            raise TransferFailedError(f"{self.name} was not joined")
        return self._communicator

    def _start(self, chunk: memoryview, seconds: float) -> _Flight:
        lane = self._joined.lane
        slot = lane.take()
        if self.rank == 0:
            lane.copy_in(slot, address_of(chunk), len(chunk))
        self._broadcast(slot, slot.pointer, len(chunk), seconds)
        return _Flight(self, slot, None if self.rank == 0 else chunk, seconds)

    def _direct(self, window: Window, seconds: float) -> _Flight:
        slot = self._joined.lane.take()  # for its stream
        self._broadcast(slot, window.address, window.nbytes, seconds)
        return _Flight(self, slot, None, seconds)

    def _broadcast(self, slot: Slot, pointer: int, nbytes: int, seconds: float) -> None:
        communicator, builder = self._joined, self._engine.builder
        communicator.begun += 1
        builder.broadcast(communicator, pointer, nbytes, slot.stream)
        builder.settle(communicator.handle, deadline=time.monotonic() + seconds, rest=self._rest)

    def finish(self, slot: Slot, chunk: memoryview | None, deadline: float) -> None:
        """Wait for the slot's broadcast, looking after the peers meanwhile, and take its bytes."""
        communicator = self._communicator
        if communicator is None:  # given up since
            return
        while not communicator.lane.idle(slot):
            self._engine.builder.look(communicator)
            time_left(deadline, doing="in a broadcast")
            self._rest(_REST_SECONDS)
        communicator.ended += 1
        if chunk is not None:
            communicator.lane.copy_out(slot, address_of(chunk), len(chunk))
