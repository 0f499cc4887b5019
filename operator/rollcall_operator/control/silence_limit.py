"""Ends the reading of a stream on which nothing arrives."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class SilenceError(Exception):
    """Nothing arrived for so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"it has sent nothing for {seconds:g} s")


@asynccontextmanager
async def silence_limit(seconds: float) -> AsyncIterator[Callable[[], None]]:
    """Raises SilenceError `seconds` after the last call of what it yields, `arrived`.

    A timer is set again only when it is due, not at each arrival: of thousands of streams in which
    something arrives each second that is cheaper than a timeout for each read.
    """
    loop = asyncio.get_running_loop()
    limit, last = asyncio.timeout(None), loop.time()
    timer: asyncio.TimerHandle | None = None

    def arrived() -> None:
        nonlocal last
        last = loop.time()

    def look() -> None:
        nonlocal timer
        due = last + seconds
        if due <= loop.time():
            limit.reschedule(due)
        else:
            timer = loop.call_at(due, look)

    try:
        async with limit:
            look()
            yield arrived
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise SilenceError(seconds) from error
    finally:
        if timer is not None:
            timer.cancel()
