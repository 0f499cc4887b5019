"""How many requests and answers a pod of the front has at once, and how many more wait."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial

from rollcall_plugins.front.openai.fair_places import FairPlaces
from rollcall_plugins.front.openai.openai_requests import MOST_ANSWERS

WAIT_SECONDS = 60.0
USUAL_TOKENS = 1024  # of an answer, where the job's sampling names no number

Place = Callable[[], AbstractAsyncContextManager[None]]
"""Waits for the place of one answer, which is had while it is sampled."""


class BusyError(RuntimeError):
    """More requests than may run and wait."""


class Admission:
    """Belongs to one event loop.

    `running` requests run at once and `waiting` more wait. `running` answers are sampled at once;
    an answer counts once for each `tokens` (0: USUAL_TOKENS) of those that it may have.
    """

    def __init__(self, *, running: int, waiting: int, tokens: int = 0) -> None:
        self._places, self._unit = FairPlaces(running), tokens or USUAL_TOKENS
        self._most_work, self._work = max(MOST_ANSWERS, running + waiting), Counter[str]()
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

    @contextmanager
    def work(self, key: str, *, keys: int, answers: int, tokens: int) -> Iterator[Place]:
        """Room for a request of `answers` that may have `tokens` each (0: as many as usual).

        All answers of one of `keys` API keys together have an equal part of the room; a single
        request may have more. BusyError beyond that.
        """
        each = min(-(-tokens // self._unit) or 1, self._running)
        own, more, part = self._work[key], each * answers, self._most_work // keys
        if own and own + more > part:
            problem = f"this API key has {own} of {part} answers unfinished, and {more} more are"
            raise BusyError(
                f"too many answers: {problem} asked for (long ones count several times)"
            )
        self._work[key] += more
        try:
            with self._places.asker(key) as asker:
                yield partial(self._places.taken, asker, each)
        finally:
            self._work[key] -= more
            if not self._work[key]:
                del self._work[key]
