"""Ascend NPUs: an HCCL communicator for each session, from root info that the sender mints.

No torch process group, no default world, and no torch_npu: the libraries of CANN are called by
ctypes. HCCL has no abort, so a communicator lives in a process of its own, which an aborted session
kills if anything hangs in it; one that is at rest is kept for the next session. That process alone
gets HCCL_IF_IP, the engine's address, at which peers reach it. Whether the engine can be used is
decided by whether libhccl.so and libascendcl.so are there.

Weights in device memory are sent from where they are and arrive where they are staged: the process
imports that memory, if this CANN can share it between processes. Those in host memory pass through
pieces of memory shared with the process, and through pieces of the NPU's.

Tested on this code's side of the C interface, against a double of HCCL and of AscendCL. Never run
on an NPU. What the double cannot tell: speed, how long a killed process's memory stays taken on the
NPU, whether the NPU shares itself between that process and the one that serves the model, and that
nothing writes into imported memory any more once the process has been killed.
"""

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rollcall_protocol.wire.ids import SessionId
from rollcall_protocol.wire.messages import Seat
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.bindings.acl_library import AclLibrary
from rollcall_runtime.sync.bindings.hccl_library import locate
from rollcall_runtime.sync.engine import HOST, EngineKind, SyncSettings
from rollcall_runtime.sync.engines.common.child_process import ProcessError
from rollcall_runtime.sync.engines.common.child_process_session import Flight, ProcessSession
from rollcall_runtime.sync.engines.common.threaded_engine import ThreadedEngine
from rollcall_runtime.sync.engines.hccl.process import Owner, Places
from rollcall_runtime.sync.errors import JoinFailedError
from rollcall_runtime.sync.memory.buffers import Buffer, Pin, Window
from rollcall_runtime.sync.memory.device_buffers import DeviceBuffer
from rollcall_runtime.sync.rendezvous import Rendezvous

log = logging.getLogger(__name__)
_HCCL, _ACL = locate("libhccl.so"), locate("libascendcl.so")


def _shares(path: str) -> bool:
    """Whether the communicator's process can reach device memory of this one."""
    try:
        return AclLibrary(path).shares
    except ImportError:  # of a CANN that is not whole: joining will tell
        return False


@dataclass(frozen=True, slots=True)
class HcclSettings(SyncSettings):
    """`library` and `acl_library` are paths, empty for those of the CANN that is installed.

    `device` is the index of a visible NPU; below 0: LOCAL_RANK's, or the first. `in_flight` pieces
    of `operation_bytes` are held, on the NPU and in shared memory. A process that takes longer than
    `leave_seconds` to leave its communicator is killed.
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
    package = "torch-npu"
    memories = frozenset({"cpu", "npu"}) if _shares(_ACL) else HOST
    settings_type = HcclSettings

    def __init__(self) -> None:
        super().__init__()
        self._resting: Owner | None = None
        self._closed = False

    @property
    def hccl_settings(self) -> HcclSettings:
        """What `open` was given."""
        return self.settings_as(HcclSettings)

    def take(self) -> tuple[Owner, bool]:
        """A process without a communicator; whether it is new, and has yet to say it started."""
        with self._lock:
            resting, self._resting = self._resting, None
        if resting is not None:
            return resting, False
        settings = self.hccl_settings
        index = settings.device
        if index < 0:
            index = int(os.environ.get("LOCAL_RANK", "0"))
        places = Places(
            hccl=settings.library or _HCCL,
            acl=settings.acl_library or _ACL,
            device=index,
            slots=settings.in_flight,
            slot_bytes=settings.operation_bytes,
        )
        return Owner(places, address=self.address), True

    def put_back(self, owner: Owner) -> None:
        """Keep a process that has left its communicator, if there is none yet."""
        with self._lock:
            if self._resting is None and not self._closed:
                self._resting = owner
                return
        owner.kill()

    def _make(
        self, *, group: str, session: SessionId, seats: Sequence[Seat], rank: int
    ) -> "HcclSession":
        return HcclSession(group=group, session=session, seats=seats, rank=rank, engine=self)

    def _stop(self) -> None:
        with self._lock:
            self._closed = True
            resting, self._resting = self._resting, None
        if resting is not None:
            resting.kill()


class HcclSession(ProcessSession[Owner]):
    """One communicator, in a process of its own."""

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
        self._pins: list[Pin] = []  # device memory that the process may still write

    def _send(self, buffer: Buffer, manifest: WeightManifest, deadline: float) -> None:
        with self._attached(buffer, deadline):
            super()._send(buffer, manifest, deadline)

    def _take(self, buffer: Buffer, manifest: WeightManifest, deadline: float) -> None:
        with self._attached(buffer, deadline):
            super()._take(buffer, manifest, deadline)

    def _disconnect(self) -> None:
        try:
            super()._disconnect()
        finally:  # the process has ended, or is at rest
            while self._pins:
                self._pins.pop().release()

    @contextmanager
    def _attached(self, buffer: Buffer, deadline: float) -> Iterator[None]:
        """For a transfer: the process reaches the buffer, if it is in device memory."""
        root = buffer.root
        if not isinstance(root, DeviceBuffer):
            yield
            return
        process = self._joined
        pin = buffer.pin()
        self._pins.append(pin)
        key = root.export()
        try:
            process.ask("attach", key=key)
            self._answer(deadline)
            yield
            process.ask("detach", key=key)  # what is not used may be freed
            self._answer(deadline)
        finally:
            if not process.busy:
                self._pins.remove(pin)
                pin.release()

    def _direct(self, window: Window, seconds: float) -> Flight:
        root, slot = window.root, self._take_slot()
        if not isinstance(root, DeviceBuffer):
            raise TypeError(f"{root.device} memory is not exported")
        self._joined.ask(
            "broadcast", slot=slot, nbytes=window.nbytes, key=root.export(), offset=window.start
        )
        return Flight(self, slot, None, seconds)

    def _connect(self, rendezvous: Rendezvous, deadline: float) -> None:
        """All ranks join at the same time, each in its own process, so none waits for another's
        turn.
        """
        self._broken = True  # until it has joined: a join that hangs cannot be left
        self._process, new = self._engine.take()
        try:
            if new:
                self._answer(deadline)
            if self.rank == 0:
                self._process.ask("root")
                rendezvous.put("root", self._answer(deadline)["root"].encode())
            root = rendezvous.get("root").decode()
            self._process.ask("join", root=root, size=len(self.seats), rank=self.rank)
            self._answer(deadline)
        except ProcessError as error:
            raise JoinFailedError(f"{self.name}: {error}") from error
        self._broken = False

    def _part(self, process: Owner) -> None:
        if self._broken or process.busy:
            process.kill()
            return
        deadline = time.monotonic() + self._engine.hccl_settings.leave_seconds
        try:
            process.ask("leave")
            process.answer(lambda: _before(deadline))
        except ProcessError as error:
            log.warning("%s: %s", self.name, error)
            process.kill()
            return
        self._engine.put_back(process)


def _before(deadline: float) -> None:
    if time.monotonic() >= deadline:
        raise ProcessError("it does not leave its communicator")
