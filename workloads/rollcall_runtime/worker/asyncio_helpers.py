"""Runs coroutines side by side, and keeps the event loop responsive beside busy threads."""

import asyncio
import sys
from collections.abc import Awaitable

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
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
