"""How many requests a pod of the front has at once, and how many more wait."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

WAIT_SECONDS = 60.0


class BusyError(RuntimeError):
    """More requests than may run and wait."""


class Admission:
    """Belongs to one event loop."""

    def __init__(self, *, running: int, waiting: int) -> None:
        self._slots = asyncio.Semaphore(running)
        self._running, self._most_waiting = running, waiting
        self.waiting = 0

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """A place among those that run; BusyError if too many wait, or after WAIT_SECONDS."""
        if self._slots.locked() and self.waiting >= self._most_waiting:
            raise BusyError(f"too many requests: {self._running} run and {self.waiting} wait")
        self.waiting += 1
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._slots.acquire()
        except TimeoutError:
            raise BusyError(f"too many requests: no place within {WAIT_SECONDS:.0f} s") from None
        finally:
            self.waiting -= 1
        try:
            yield
        finally:
            self._slots.release()
