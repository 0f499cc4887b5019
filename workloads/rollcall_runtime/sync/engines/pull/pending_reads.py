"""Reads of a peer's memory in flight, each of which may write into a buffer until it has ended."""

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from rollcall_protocol.wire.ids import MemberId
from rollcall_runtime.sync.errors import TimedOutError
from rollcall_runtime.sync.memory.buffers import BufferHold

_FIRST_POLL_SECONDS, _LONGEST_POLL_SECONDS = 0.0001, 0.002


class LibraryRead(ABC):
    """One read in flight, as a transport's library sees it."""

    @abstractmethod
    def done(self) -> bool:
        """Whether the read succeeded; raises an error of the library if it failed."""

    def release(self) -> None:  # noqa: B027 - not every library holds resources for a read
        """Free the library's resources for the read; called once, after it has ended."""


class PendingRead:
    """A read in flight and the hold on the buffer that it writes into; a `TransferHandle`."""

    def __init__(
        self,
        reads: "PendingReads",
        read: LibraryRead,
        hold: BufferHold,
        *,
        seconds: float,
        peer: MemberId | None,
    ) -> None:
        self._reads, self._read, self._hold, self._peer = reads, read, hold, peer
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._ended = False

    def wait(self) -> None:
        """Poll until the read has ended.

        Raises TimedOutError, AbortedError when the session is aborted, or the library's error.
        """
        poll = _FIRST_POLL_SECONDS
        while not self.ended():
            self._reads.sleep(poll)
            if time.monotonic() >= self._deadline:
                raise TimedOutError(
                    f"timed out after {self._seconds:.3g} s reading from a peer", peer=self._peer
                )
            poll = min(poll * 2, _LONGEST_POLL_SECONDS)

    def ended(self) -> bool:
        """Whether the read writes no more; raises the library's error, once, if it failed."""
        if self._ended:  # a library must not be asked about a read that was released
            return True
        done = True  # a failure ends a read too
        try:
            done = self._read.done()
        finally:
            if done:
                self._ended = True
                self._reads.discard(self)
                self._hold.release()
                self._read.release()
        return done


class PendingReads:
    """The reads in flight of one session.

    `sleep(seconds)` raises when the session is aborted; `library_errors` are what reads raise.
    """

    def __init__(
        self, *, sleep: Callable[[float], None], library_errors: tuple[type[Exception], ...]
    ) -> None:
        self.sleep = sleep
        self._library_errors = library_errors
        self._pending: set[PendingRead] = set()

    def __len__(self) -> int:
        return len(self._pending)

    def add(
        self, read: LibraryRead, hold: BufferHold, *, seconds: float, peer: MemberId | None
    ) -> PendingRead:
        """Track a read that has begun and may take `seconds`; `hold` is released when it ends."""
        pending = PendingRead(self, read, hold, seconds=seconds, peer=peer)
        self._pending.add(pending)
        return pending

    def discard(self, read: PendingRead) -> None:
        """Stop tracking a read that has ended."""
        self._pending.discard(read)

    def drain(self, seconds: float) -> bool:
        """Wait at most `seconds` until all reads have ended or failed; whether they have."""
        deadline = time.monotonic() + seconds
        while True:
            for read in tuple(self._pending):
                with contextlib.suppress(*self._library_errors):  # reported to its caller before
                    read.ended()
            if not self._pending or time.monotonic() >= deadline:
                return not self._pending
            time.sleep(_LONGEST_POLL_SECONDS)
