"""Sessions whose library broadcasts in a child process, through memory shared with it."""

import time
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from rollcall_protocol.wire.ids import SessionId
from rollcall_protocol.wire.messages import Seat
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.bucket_transfer import BucketTransfer
from rollcall_runtime.sync.engines.common.library_process import (
    LibraryProcess,
    LibraryProcessError,
)
from rollcall_runtime.sync.engines.common.threaded_engine import (
    ThreadedEngine,
    ThreadedSession,
    seconds_left,
)
from rollcall_runtime.sync.errors import TransferFailedError
from rollcall_runtime.sync.memory.buffers import Buffer, BufferWindow

P = TypeVar("P", bound=LibraryProcess)


class ProcessBroadcast:
    """A broadcast in flight in the child; at a receiver `chunk` gets the bytes of the slot."""

    def __init__(
        self,
        session: "LibraryProcessSession[Any]",
        slot: int,
        chunk: memoryview | None,
        seconds: float,
    ) -> None:
        self._session, self._slot, self._chunk = session, slot, chunk
        self._deadline = time.monotonic() + seconds

    def wait(self) -> None:
        """Until the bytes have arrived; AbortedError, TimedOutError or LibraryProcessError."""
        self._session.finish(self._slot, self._chunk, self._deadline)


class LibraryProcessSession(ThreadedSession, Generic[P]):
    """One communicator, in a child process.

    `_connect` sets `_process`, and `_may_hang` as long as the child's library may hang;
    `_release_process` ends the child, or keeps it for the next session.
    """

    def __init__(
        self,
        *,
        group: str,
        session: SessionId,
        seats: Sequence[Seat],
        rank: int,
        engine: ThreadedEngine,
    ) -> None:
        super().__init__(group=group, session=session, seats=seats, rank=rank, engine=engine)
        self._process: P | None = None
        self._may_hang = False
        self._next_slot = 0
        self._transfer = BucketTransfer(
            start=self._start_broadcast,
            raise_if_aborted=self._raise_if_aborted,
            settings=self.settings,
            bucket_done=self._trace_bucket,
            start_on_device=self._start_device_broadcast,
        )

    def _release_process(self, process: P) -> None:
        process.kill()

    def _send(self, buffer: Buffer, manifest: WeightManifest, deadline: float) -> None:
        self._transfer.send(buffer, manifest, deadline)

    def _receive(self, buffer: Buffer, manifest: WeightManifest, deadline: float) -> None:
        self._transfer.receive(buffer, manifest, deadline)

    def _disconnect(self) -> None:
        process, self._process = self._process, None
        try:
            if process is not None:
                self._release_process(process)
        finally:
            self._transfer.drain()  # waits for nothing: no other process accesses the buffer

    @property
    def _joined(self) -> P:
        if self._process is None:
            raise TransferFailedError(f"{self.name} was not joined")
        return self._process

    def _start_broadcast(self, chunk: memoryview, seconds: float) -> ProcessBroadcast:
        process, slot = self._joined, self._take_slot()
        if self.rank == 0:
            process.memory[slot][: len(chunk)] = chunk
        process.call("broadcast", slot=slot, nbytes=len(chunk))
        return ProcessBroadcast(self, slot, chunk if self.rank != 0 else None, seconds)

    def _start_device_broadcast(self, window: BufferWindow, seconds: float) -> ProcessBroadcast:
        """For libraries whose process can reach memory of a device that is in this one."""
        raise TypeError(f"{self.engine.name} cannot reach {window.device} memory in {seconds:g} s")

    def _take_slot(self) -> int:
        slot = self._next_slot
        self._next_slot = (slot + 1) % len(self._joined.memory)
        return slot

    def finish(self, slot: int, chunk: memoryview | None, deadline: float) -> None:
        """Wait for the oldest broadcast, and copy its bytes if they are in the slot."""
        process = self._process
        if process is None:  # released since, by an abort
            return
        self._wait_for_answer(deadline)
        if chunk is not None:
            chunk[:] = process.memory[slot][: len(chunk)]

    def _wait_for_answer(self, deadline: float) -> dict[str, Any]:
        process = self._joined

        def poll() -> None:
            self._raise_if_aborted()
            seconds_left(deadline, doing=f"waiting for the {process.library} process")

        try:
            return process.wait_for_answer(poll)
        except LibraryProcessError:
            self._may_hang = True
            raise
