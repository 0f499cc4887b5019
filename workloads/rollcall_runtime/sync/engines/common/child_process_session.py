"""Sessions whose library broadcasts in a process of its own, through memory shared with it."""

import time
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from rollcall_protocol.wire.ids import SessionId
from rollcall_protocol.wire.messages import Seat
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.bucket_transfer import BucketTransfer
from rollcall_runtime.sync.engines.common.child_process import ProcessError, ProcessOwner
from rollcall_runtime.sync.engines.common.threaded_engine import (
    ThreadedEngine,
    ThreadedSession,
    time_left,
)
from rollcall_runtime.sync.errors import TransferFailedError
from rollcall_runtime.sync.memory.buffers import Buffer, Window

P = TypeVar("P", bound=ProcessOwner)


class Flight:
    """A broadcast in flight; `chunk` is to get what arrives in the slot."""

    def __init__(
        self, session: "ProcessSession[Any]", slot: int, chunk: memoryview | None, seconds: float
    ) -> None:
        self._session, self._slot, self._chunk = session, slot, chunk
        self._deadline = time.monotonic() + seconds

    def wait(self) -> None:
        """Until the bytes are there; AbortedError, TimedOutError or ProcessError."""
        self._session.finish(self._slot, self._chunk, self._deadline)


class ProcessSession(ThreadedSession, Generic[P]):
    """One communicator, in a process of its own.

    `_connect` sets `_process`, and `_broken` as long as the process may hang; `_part` gives the
    process up.
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
        self._broken = False
        self._turn = 0
        self._mover = BucketTransfer(
            start=self._start,
            stop=self._check,
            settings=self.settings,
            landed=self._landed,
            direct=self._direct,
        )

    def _part(self, process: P) -> None:
        process.kill()

    def _send(self, buffer: Buffer, manifest: WeightManifest, deadline: float) -> None:
        self._mover.send(buffer, manifest, deadline)

    def _take(self, buffer: Buffer, manifest: WeightManifest, deadline: float) -> None:
        self._mover.receive(buffer, manifest, deadline)

    def _disconnect(self) -> None:
        process, self._process = self._process, None
        try:
            if process is not None:
                self._part(process)
        finally:
            self._mover.drain()  # waits for nothing: no other process touches the buffer

    @property
    def _joined(self) -> P:
        if self._process is None:
            raise TransferFailedError(f"{self.name} was not joined")
        return self._process

    def _start(self, chunk: memoryview, seconds: float) -> Flight:
        process, slot = self._joined, self._take_slot()
        if self.rank == 0:
            process.memory[slot][: len(chunk)] = chunk
        process.ask("broadcast", slot=slot, nbytes=len(chunk))
        return Flight(self, slot, chunk if self.rank != 0 else None, seconds)

    def _direct(self, window: Window, seconds: float) -> Flight:
        """For libraries whose process can reach memory of a device that is in this one."""
        raise TypeError(f"{self.engine.name} cannot reach {window.device} memory in {seconds:g} s")

    def _take_slot(self) -> int:
        slot = self._turn
        self._turn = (slot + 1) % len(self._joined.memory)
        return slot

    def finish(self, slot: int, chunk: memoryview | None, deadline: float) -> None:
        """Wait for the oldest broadcast, and take its bytes, if they are in the slot."""
        process = self._process
        if process is None:  # given up since
            return
        self._answer(deadline)
        if chunk is not None:
            chunk[:] = process.memory[slot][: len(chunk)]

    def _answer(self, deadline: float) -> dict[str, Any]:
        process = self._joined

        def rest() -> None:
            self._check()
            time_left(deadline, doing=f"while {process.library} is busy")

        try:
            return process.answer(rest)
        except ProcessError:
            self._broken = True
            raise
