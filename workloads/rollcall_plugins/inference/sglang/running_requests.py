"""Which requests run, for an update that waits until none does: SGLang has no such pause."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class RunningRequests:
    """Of one event loop."""

    def __init__(self) -> None:
        self._count = 0
        self._none, self._admitted = asyncio.Event(), asyncio.Event()
        self._none.set()
        self._admitted.set()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """A request runs inside; it begins when none is held back."""
        while not self._admitted.is_set():
            await self._admitted.wait()
        self._count += 1
        self._none.clear()
        try:
            yield
        finally:
            self._count -= 1
            if not self._count:
                self._none.set()

    @asynccontextmanager
    async def none(self, *, seconds: float) -> AsyncIterator[None]:
        """No request runs inside: those that run are waited for, new ones held back.

        TimeoutError if some still run after `seconds`.
        """
        self._admitted.clear()
        try:
            await self._end_of_all(seconds)
            yield
        finally:
            self._admitted.set()

    async def _end_of_all(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._none.wait()
        except TimeoutError:
            problem = f"{self._count} responses still run after {seconds:g} s"
            raise TimeoutError(problem) from None
