"""Ascend NPUs: an HCCL communicator for each session, from root info that the sender creates.

No torch process group, no default world, and no torch_npu: the libraries of CANN are called by
ctypes. HCCL has no abort, so a communicator lives in a child process, which an aborted session
kills if anything hangs in it; a child that is at rest is kept for the next session. The child alone
has HCCL_IF_IP set, to the engine's address, at which peers reach it. The engine is available where
libhccl.so and libascendcl.so are found.

Weights in device memory are sent from where they are and arrive where they are staged: the child
imports that memory, if this CANN can share it between processes. Those in host memory pass through
memory shared with the child, and through slots on the NPU.

Tested against a double of HCCL and of AscendCL, on this code's side of the C interface. Never run
on an NPU. What the double cannot show: speed, how long a killed child's memory stays allocated on
the NPU, whether the child and the process that serves the model can use the NPU at the same time,
and that nothing writes into imported memory after the child was killed.
"""

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rollcall_plugins.transports.hccl.process import HcclProcess, HcclProcessConfig
from rollcall_protocol.wire.ids import SessionId
from rollcall_protocol.wire.messages import Seat
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.bindings.acl_library import AclLibrary, locate
from rollcall_runtime.sync.engine import HOST, EngineKind, SyncSettings
from rollcall_runtime.sync.engines.common.library_process import LibraryProcessError
from rollcall_runtime.sync.engines.common.library_process_session import (
    LibraryProcessSession,
    ProcessBroadcast,
)
from rollcall_runtime.sync.engines.common.threaded_engine import ThreadedEngine
from rollcall_runtime.sync.errors import JoinFailedError
from rollcall_runtime.sync.memory.buffers import Buffer, BufferHold, BufferWindow
from rollcall_runtime.sync.memory.device_buffers import DeviceBuffer
from rollcall_runtime.sync.rendezvous import SessionRendezvous

log = logging.getLogger(__name__)
_HCCL, _ACL = "libhccl.so", "libascendcl.so"


def _can_share_memory() -> bool:
    """Whether the child process can reach device memory of this one."""
    try:
        return AclLibrary(locate(_ACL)).can_share_memory
    except ImportError:  # no CANN, or an incomplete one: joining reports what is missing
        return False


@dataclass(frozen=True, slots=True)
class HcclSettings(SyncSettings):
    """`library` and `acl_library` are paths, empty for those of the CANN that is installed.

    `device` is the index of a visible NPU; below 0: LOCAL_RANK's, or the first. `in_flight` slots
    of `operation_bytes` are held, on the NPU and in shared memory. A child that takes longer than
    `leave_seconds` to free its communicator is killed.
    """

    library: str = ""
    acl_library: str = ""
    device: int = -1
    leave_seconds: float = 1.0


class HcclEngine(ThreadedEngine):
    """Broadcast between NPUs, each of which belongs to one member."""

    name = "hccl"
    kind = EngineKind.GROUP
    devices = frozenset({"npu"})
    library = "torch_npu"
    buffer_devices = frozenset({"cpu", "npu"}) if _can_share_memory() else HOST
    settings_type = HcclSettings

    @classmethod
    def require_library(cls) -> None:
        """ImportError if the libraries of HCCL or ACL are not found."""
        locate(_HCCL)
        locate(_ACL)

    def __init__(self) -> None:
        super().__init__()
        self._idle_process: HcclProcess | None = None
        self._closed = False

    @property
    def hccl_settings(self) -> HcclSettings:
        """The settings that `open` was given."""
        return self.settings_as(HcclSettings)

    def take_process(self) -> tuple[HcclProcess, bool]:
        """A child without a communicator; whether it is new, so that its first answer is due."""
        with self._lock:
            idle, self._idle_process = self._idle_process, None
        if idle is not None:
            return idle, False
        settings = self.hccl_settings
        index = settings.device
        if index < 0:
            index = int(os.environ.get("LOCAL_RANK", "0"))
        config = HcclProcessConfig(
            hccl=settings.library or locate(_HCCL),
            acl=settings.acl_library or locate(_ACL),
            device=index,
            slots=settings.in_flight,
            slot_bytes=settings.operation_bytes,
        )
        return HcclProcess(config, address=self.address), True

    def return_process(self, process: HcclProcess) -> None:
        """Keep a child that has freed its communicator, if none is kept yet."""
        with self._lock:
            if self._idle_process is None and not self._closed:
                self._idle_process = process
                return
        process.kill()

    def _new_session(
        self, *, group: str, session: SessionId, seats: Sequence[Seat], rank: int
    ) -> "HcclSession":
        return HcclSession(group=group, session=session, seats=seats, rank=rank, engine=self)

    def _close_transport(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle_process = self._idle_process, None
        if idle is not None:
            idle.kill()


class HcclSession(LibraryProcessSession[HcclProcess]):
    """One communicator, in a child process."""

    def __init__(
        self,
        *,
        group: str,
        session: SessionId,
        seats: Sequence[Seat],
        rank: int,
        engine: HcclEngine,
    ) -> None:
        super().__init__(group=group, session=session, seats=seats, rank=rank, engine=engine)
        self._engine = engine
        self._holds: list[BufferHold] = []  # on device memory that the child may still write

    def _send(self, buffer: Buffer, manifest: WeightManifest, deadline: float) -> None:
        with self._attached(buffer, deadline):
            super()._send(buffer, manifest, deadline)

    def _receive(self, buffer: Buffer, manifest: WeightManifest, deadline: float) -> None:
        with self._attached(buffer, deadline):
            super()._receive(buffer, manifest, deadline)

    def _disconnect(self) -> None:
        try:
            super()._disconnect()
        finally:  # the child has exited, or is at rest
            while self._holds:
                self._holds.pop().release()

    @contextmanager
    def _attached(self, buffer: Buffer, deadline: float) -> Iterator[None]:
        """For a transfer: the child imports the buffer, if it is in device memory."""
        root = buffer.root
        if not isinstance(root, DeviceBuffer):
            yield
            return
        process = self._joined
        hold = buffer.hold()
        self._holds.append(hold)
        key = root.export()
        try:
            process.call("attach", key=key)
            self._wait_for_answer(deadline)
            yield
            process.call("detach", key=key)  # what is not used may be freed
            self._wait_for_answer(deadline)
        finally:
            if not process.busy:
                self._holds.remove(hold)
                hold.release()

    def _start_device_broadcast(self, window: BufferWindow, seconds: float) -> ProcessBroadcast:
        root, slot = window.root, self._take_slot()
        if not isinstance(root, DeviceBuffer):
            raise TypeError(f"{root.device} memory is not exported")
        self._joined.call(
            "broadcast", slot=slot, nbytes=window.nbytes, key=root.export(), offset=window.start
        )
        return ProcessBroadcast(self, slot, None, seconds)

    def _connect(self, rendezvous: SessionRendezvous, deadline: float) -> None:
        """All ranks join at the same time, each in its own process, so none waits for another's
        turn.
        """
        self._may_hang = True  # until it has joined: a join that hangs cannot be ended otherwise
        self._process, new = self._engine.take_process()
        try:
            if new:
                self._wait_for_answer(deadline)
            if self.rank == 0:
                self._process.call("root")
                rendezvous.put("root", self._wait_for_answer(deadline)["root"].encode())
            root = rendezvous.get("root").decode()
            self._process.call("join", root=root, size=len(self.seats), rank=self.rank)
            self._wait_for_answer(deadline)
        except LibraryProcessError as error:
            raise JoinFailedError(f"{self.name}: {error}") from error
        self._may_hang = False

    def _release_process(self, process: HcclProcess) -> None:
        if self._may_hang or process.busy:
            process.kill()
            return
        deadline = time.monotonic() + self._engine.hccl_settings.leave_seconds
        try:
            process.call("leave")
            process.wait_for_answer(lambda: _raise_after(deadline))
        except LibraryProcessError as error:
            log.warning("%s: the HCCL process is killed: %s", self.name, error)
            process.kill()
            return
        self._engine.return_process(process)


def _raise_after(deadline: float) -> None:
    if time.monotonic() >= deadline:
        raise LibraryProcessError("the HCCL process did not free its communicator in time")
