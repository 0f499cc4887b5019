"""Running things side by side with one plain exception for an end, not a group of them."""

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any

SWITCH_SECONDS = 0.001


def favour_event_loop() -> None:
    """Have other threads' Python code give way often: heartbeats must not wait for it."""
    sys.setswitchinterval(SWITCH_SECONDS)


async def first_of(*work: Coroutine[Any, Any, None]) -> None:
    """Run all until the first ends or fails; the others are cancelled and awaited.

    Raises what the first one raised.
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
