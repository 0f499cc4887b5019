"""NVIDIA GPUs: an NCCL communicator for each session, from a unique id that the sender creates.

No torch process group and no default world: the library is called by ctypes. Weights in device
memory are sent from where they are and arrive where they are staged; those in host memory pass
through device slots at each member. NCCL's calls do not block; what hangs on the device is ended by
ncclCommAbort, on the thread of the aborted session.

Tested against a double of NCCL and of the CUDA runtime, on this code's side of the C interface.
Never run on a GPU. What the double cannot show: speed, NCCL's own choice of network interfaces
(`interface` sets NCCL_SOCKET_IFNAME unless that is set, and is too late if this process has used
NCCL before), and how long a real ncclCommShrink or ncclCommAbort takes. NCCL's bootstrap and
sockets listen where NCCL decides.
"""

import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rollcall_plugins.transports.nccl.communicator import Communicator, CommunicatorBuilder
from rollcall_plugins.transports.nccl.device_slots import CudaDeviceSlots, DeviceSlot
from rollcall_plugins.transports.nccl.nccl_library import NcclLibrary
from rollcall_protocol.wire.ids import SessionId
from rollcall_protocol.wire.messages import Seat
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.bindings.c_library import LibraryError, address_of
from rollcall_runtime.sync.bindings.cuda_library import CudaLibrary
from rollcall_runtime.sync.bucket_transfer import BucketTransfer
from rollcall_runtime.sync.engine import EngineKind, Role, SyncSettings
from rollcall_runtime.sync.engines.common.threaded_engine import (
    ThreadedEngine,
    ThreadedSession,
    seconds_left,
)
from rollcall_runtime.sync.errors import JoinFailedError, TransferFailedError
from rollcall_runtime.sync.memory.buffers import Buffer, BufferWindow
from rollcall_runtime.sync.rendezvous import SessionRendezvous

log = logging.getLogger(__name__)
_POLL_SECONDS = 0.0002


@dataclass(frozen=True, slots=True)
class NcclSettings(SyncSettings):
    """`library` and `cuda_runtime` are paths, empty for those that torch uses. `device` is the
    index of a visible GPU; below 0: LOCAL_RANK's, or the first. `in_flight` slots of
    `operation_bytes` of device memory are held for each session. `pin_memory` page-locks the host
    buffers that slots are copied to and from.

    The communicator of a session that ended is kept for `reuse_seconds`, so that the next session
    may shrink or grow it; what hangs in it occupies the GPU for so long. 0 aborts it at once.
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
    library = "nvidia.nccl"
    buffer_devices = frozenset({"cpu", "cuda"})
    settings_type = NcclSettings

    @classmethod
    def require_library(cls) -> None:
        """ImportError if the libraries of NCCL or CUDA are not found."""
        NcclLibrary()
        CudaLibrary()

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[str, tuple[Communicator, threading.Timer]] = {}
        self._device: CudaDeviceSlots | None = None
        self._builder: CommunicatorBuilder | None = None

    @property
    def device(self) -> CudaDeviceSlots:
        """The GPU's slots; RuntimeError when the engine is not open."""
        if self._device is None:
            raise RuntimeError("the engine is not open")
        return self._device

    @property
    def builder(self) -> CommunicatorBuilder:
        """Makes the communicators; RuntimeError when the engine is not open."""
        if self._builder is None:
            raise RuntimeError("the engine is not open")
        return self._builder

    @property
    def nccl_settings(self) -> NcclSettings:
        """The settings that `open` was given."""
        return self.settings_as(NcclSettings)

    def keep(self, group: str, communicator: Communicator) -> None:
        """Keep an ended session's communicator for the group's next session."""
        seconds = self.nccl_settings.reuse_seconds
        if seconds == 0:
            self.builder.abort(communicator)
            return
        timer = threading.Timer(seconds, self._expire, args=(group, communicator))
        timer.daemon = True
        with self._lock:
            before = self._kept.get(group)
            self._kept[group] = (communicator, timer)
        timer.start()
        self._abort_kept(before)

    def take(self, group: str) -> Communicator | None:
        """The communicator of the group's last session, if kept; the caller owns it now."""
        with self._lock:
            kept = self._kept.pop(group, None)
        if kept is None:
            return None
        kept[1].cancel()
        return kept[0]

    def _new_session(
        self, *, group: str, session: SessionId, seats: Sequence[Seat], rank: int
    ) -> "NcclSession":
        return NcclSession(group=group, session=session, seats=seats, rank=rank, engine=self)

    def _open_transport(self, role: Role) -> dict[str, Any]:  # noqa: ARG002
        settings = self.nccl_settings
        if settings.interface:
            os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={settings.interface}")
        nccl, cuda = NcclLibrary(settings.library), CudaLibrary(settings.cuda_runtime)
        index, count = settings.device, cuda.devices()
        if index < 0:
            index = int(os.environ.get("LOCAL_RANK", "0")) % max(count, 1)
        if index >= count:
            raise ValueError(
                f"config.device is {index}, but this process sees {count} GPUs, numbered from 0"
            )
        self._device = CudaDeviceSlots(
            cuda, index=index, slots=settings.in_flight, slot_bytes=settings.operation_bytes
        )
        self._builder = CommunicatorBuilder(nccl, self._device)
        return {}

    def _close_transport(self) -> None:
        with self._lock:
            kept = list(self._kept.values())
            self._kept.clear()
        for each in kept:
            self._abort_kept(each)
        self.device.close()

    def _expire(self, group: str, communicator: Communicator) -> None:
        with self._lock:
            kept = self._kept.get(group)
            if kept is None or kept[0] is not communicator:
                return  # taken by a session, or replaced and aborted
            del self._kept[group]
        self._abort_kept(kept)

    def _abort_kept(self, kept: tuple[Communicator, threading.Timer] | None) -> None:
        if kept is None:
            return
        kept[1].cancel()
        try:
            self.builder.abort(kept[0])
        except LibraryError:
            log.exception("NCCL failed to free a communicator")


class _DeviceBroadcast:
    """A broadcast in flight, and at a receiver the copy to the host (`chunk`) that follows."""

    def __init__(
        self, session: "NcclSession", slot: DeviceSlot, chunk: memoryview | None, seconds: float
    ) -> None:
        self._session, self._slot, self._chunk = session, slot, chunk
        self._deadline = time.monotonic() + seconds

    def wait(self) -> None:
        """Until the bytes have arrived; AbortedError, TimedOutError or LibraryError."""
        self._session.finish(self._slot, self._chunk, self._deadline)


class NcclSession(ThreadedSession):
    """A session whose members broadcast through one NCCL communicator."""

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
        self._transfer = BucketTransfer(
            start=self._start_broadcast,
            raise_if_aborted=self._raise_if_aborted,
            settings=self.settings,
            bucket_done=self._trace_bucket,
            start_on_device=self._start_device_broadcast,
        )

    def _connect(self, rendezvous: SessionRendezvous, deadline: float) -> None:
        self._engine.device.use_device()
        try:
            self._communicator = self._engine.builder.build(
                rendezvous,
                parent=self._engine.take(self._group),
                rank=self.rank,
                size=len(self.seats),
                deadline=deadline,
                sleep=self._sleep,
            )
        except LibraryError as error:
            raise JoinFailedError(f"{self.name}: {error}") from error

    def _send(self, buffer: Buffer, manifest: WeightManifest, deadline: float) -> None:
        with self._prepared(buffer):
            self._transfer.send(buffer, manifest, deadline)

    def _receive(self, buffer: Buffer, manifest: WeightManifest, deadline: float) -> None:
        with self._prepared(buffer):
            self._transfer.receive(buffer, manifest, deadline)

    def _disconnect(self) -> None:
        communicator, self._communicator = self._communicator, None
        try:
            if communicator is not None:
                self._engine.keep(self._group, communicator)
        finally:
            # Waits for nothing: what hangs does not access host memory, and the communicator has
            # holds of its own on device memory.
            self._transfer.drain()

    @contextmanager
    def _prepared(self, buffer: Buffer) -> Iterator[None]:
        """For a transfer: a buffer in device memory is held while any of it is in flight."""
        self._engine.device.use_device()
        if buffer.device == "cpu":
            self._page_lock(buffer)
            yield
            return
        communicator = self._joined
        hold = buffer.hold()
        communicator.holds.append(hold)
        try:
            yield
        finally:
            if communicator.begun == communicator.ended:
                communicator.holds.remove(hold)
                hold.release()

    def _page_lock(self, buffer: Buffer) -> None:
        if not self._engine.nccl_settings.pin_memory:
            return
        try:
            self._engine.device.page_lock(buffer)
        except LibraryError as error:
            log.warning(
                "cannot page-lock a buffer of %d bytes, so copies to the GPU are slower: %s",
                buffer.root.nbytes,
                error,
            )

    @property
    def _joined(self) -> Communicator:
        if self._communicator is None:
            raise TransferFailedError(f"{self.name} was not joined")
        return self._communicator

    def _start_broadcast(self, chunk: memoryview, seconds: float) -> _DeviceBroadcast:
        ring = self._joined.ring
        slot = ring.next_slot()
        if self.rank == 0:
            ring.copy_in(slot, address_of(chunk), len(chunk))
        self._broadcast(slot, slot.pointer, len(chunk), seconds)
        return _DeviceBroadcast(self, slot, None if self.rank == 0 else chunk, seconds)

    def _start_device_broadcast(self, window: BufferWindow, seconds: float) -> _DeviceBroadcast:
        slot = self._joined.ring.next_slot()  # for its stream
        self._broadcast(slot, window.address, window.nbytes, seconds)
        return _DeviceBroadcast(self, slot, None, seconds)

    def _broadcast(self, slot: DeviceSlot, pointer: int, nbytes: int, seconds: float) -> None:
        communicator, builder = self._joined, self._engine.builder
        communicator.begun += 1
        builder.broadcast(communicator, pointer, nbytes, slot.stream)
        builder.wait_until_ready(
            communicator.handle, deadline=time.monotonic() + seconds, sleep=self._sleep
        )

    def finish(self, slot: DeviceSlot, chunk: memoryview | None, deadline: float) -> None:
        """Wait for the slot's broadcast, checking for failed peers, and copy its bytes."""
        communicator = self._communicator
        if communicator is None:  # released since, by an abort
            return
        while not communicator.ring.idle(slot):
            self._engine.builder.raise_if_failed(communicator)
            seconds_left(deadline, doing="in a broadcast")
            self._sleep(_POLL_SECONDS)
        communicator.ended += 1
        if chunk is not None:
            communicator.ring.copy_out(slot, address_of(chunk), len(chunk))
