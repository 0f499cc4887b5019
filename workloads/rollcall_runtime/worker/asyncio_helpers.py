"""Runs coroutines side by side, and keeps the event loop responsive beside busy threads."""

import asyncio
import sys
from collections.abc import Awaitable, Iterable
from typing import Any

SWITCH_SECONDS = 0.001


def favour_event_loop() -> None:
    """Switch threads every SWITCH_SECONDS, so that heartbeats do not wait for Python code."""
    sys.setswitchinterval(SWITCH_SECONDS)


async def first_of(*work: Awaitable[object]) -> None:
    """Run all until the first returns or raises; the others are cancelled and awaited.

    Raises the exception of the first one, not an exception group.
    """
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_all(tasks)
    for task in done:
        task.result()


async def cancel_all(tasks: "Iterable[asyncio.Future[Any]]") -> None:
    """Cancel each, and wait until all have ended; their errors are not raised."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)
