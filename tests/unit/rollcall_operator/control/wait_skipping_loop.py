"""An event loop for tests of waits: they take no time, and load cannot change their order."""

import asyncio
import selectors


class _Selector(selectors.DefaultSelector):
    """Does not wait for the next timer, but counts the seconds that it would have waited."""

    skipped = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:  # no timer is set: only a socket or a thread can go on
            return super().select(None)
        ready = super().select(0)
        if not ready:
            self.skipped += timeout
        return ready


class WaitSkippingLoop(asyncio.SelectorEventLoop):
    """Its time, in seconds from 0, stands still while any task can run, and then jumps to the next
    timer. A task that is late on a loaded machine is late for no timer.
    """

    def __init__(self) -> None:
        self._waits = _Selector()
        super().__init__(self._waits)

    def time(self) -> float:
        return self._waits.skipped
