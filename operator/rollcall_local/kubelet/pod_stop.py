"""The order to end a pod."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class PodStop(asyncio.Event):
    """Set once the pod is to end."""

    async def unless_set(self, work: Coroutine[Any, Any, T]) -> T | None:
        """What `work` returns; None if this is set before, and then it is cancelled."""
        if self.is_set():
            work.close()
            return None
        task, stopped = asyncio.ensure_future(work), asyncio.ensure_future(self.wait())
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            task.cancel()
            stopped.cancel()
            await asyncio.gather(task, stopped, return_exceptions=True)
