"""Ends the reading of a stream on which nothing arrives."""

import asyncio
from types import TracebackType
from typing import Self


class SilenceError(Exception):
    """Nothing arrived for so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"it has sent nothing for {seconds:g} s")


class SilenceLimit:
    """An asynchronous context, which SilenceError ends `seconds` after the last `arrived`.

    A timer is set again only when it is due, not at each arrival: of thousands of streams in which
    something arrives each second that is cheaper than a timeout for each read.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._limit = asyncio.timeout(None)
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    def arrived(self) -> None:
        """Something has arrived."""
        self._last = self._loop.time()

    async def __aenter__(self) -> Self:
        await self._limit.__aenter__()
        self._look()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        try:
            await self._limit.__aexit__(kind, error, trace)
        except TimeoutError as timeout:
            raise SilenceError(self._seconds) from timeout

    def _look(self) -> None:
        due = self._last + self._seconds
        if due <= self._loop.time():
            self._limit.reschedule(due)
        else:
            self._timer = self._loop.call_at(due, self._look)
