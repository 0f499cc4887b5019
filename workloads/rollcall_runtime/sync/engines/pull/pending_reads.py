"""Reads of a peer's memory in flight, which may write into a buffer until they have ended."""

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from rollcall_protocol.wire.ids import MemberId
from rollcall_runtime.sync.errors import TimedOutError
from rollcall_runtime.sync.memory.buffers import Pin

_FIRST_REST, _LONGEST_REST = 0.0001, 0.002  # seconds between two looks at a read


class Read(ABC):
    """One read in flight, as an engine's library sees it."""

    @abstractmethod
    def done(self) -> bool:
        """Whether it has ended well; an error of the library if it failed."""

    def release(self) -> None:  # noqa: B027 - not every library holds anything
        """Free what the library holds of it; called once, when it has ended."""


class Flight:
    """A read as `BucketTransfer` sees it, and the pin of the buffer that it writes into."""

    def __init__(
        self, flights: "Flights", read: Read, pin: Pin, *, seconds: float, peer: MemberId | None
    ) -> None:
        self._flights, self._read, self._pin, self._peer = flights, read, pin, peer
        self._deadline = time.monotonic() + seconds
        self._over = False

    def wait(self) -> None:
        """Look until it has ended; TimedOutError, or what the session or the library says."""
        rest = _FIRST_REST
        while not self.ended():
            self._flights.rest(rest)
            if time.monotonic() >= self._deadline:
                raise TimedOutError("no time is left for a read", peer=self._peer)
            rest = min(rest * 2, _LONGEST_REST)

    def ended(self) -> bool:
        """Whether nothing is written any more; raises if the read failed, the first time."""
        if self._over:  # libraries do not survive a question about what they have freed
            return True
        done = True  # a failure is an end too
        try:
            done = self._read.done()
        finally:
            if done:
                self._over = True
                self._flights.discard(self)
                self._pin.release()
                self._read.release()
        return done


class Flights:
    """The reads of one session. `rest(seconds)` waits and raises when the session is given up;
    `faults` are the errors of the library.
    """

    def __init__(
        self, *, rest: Callable[[float], None], faults: tuple[type[Exception], ...]
    ) -> None:
        self.rest = rest
        self._faults = faults
        self._flying: set[Flight] = set()

    def add(self, read: Read, pin: Pin, *, seconds: float, peer: MemberId | None) -> Flight:
        """Look after a read that has begun, for at most `seconds`; its pin goes when it ends."""
        flight = Flight(self, read, pin, seconds=seconds, peer=peer)
        self._flying.add(flight)
        return flight

    def discard(self, flight: Flight) -> None:
        """It has ended."""
        self._flying.discard(flight)

    def drain(self, seconds: float) -> bool:
        """Wait for the end of all, well or not, for at most `seconds`; whether it came."""
        deadline = time.monotonic() + seconds
        while True:
            for flight in tuple(self._flying):
                with contextlib.suppress(*self._faults):  # told already
                    flight.ended()
            if not self._flying or time.monotonic() >= deadline:
                return not self._flying
            time.sleep(_LONGEST_REST)
