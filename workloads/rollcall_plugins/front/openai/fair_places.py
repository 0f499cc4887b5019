"""Places for answers, which those who ask get in turn: by API key, then by request.

Start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996): who has taken much has later turns.
"""

import asyncio
import heapq
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Asker:
    """A request with the API key `key`; `turn` is that of its next answer."""

    key: str
    turn: float = 0.0


class FairPlaces:
    """`places` that answers have at once. Belongs to one event loop."""

    def __init__(self, places: int) -> None:
        self._free, self._turn = places, 0.0
        self._askers = Counter[str]()  # requests by key
        self._numbers = itertools.count()
        self._waiting: list[tuple[float, int, int, asyncio.Future[None]]] = []

    @contextmanager
    def asker(self, key: str) -> Iterator[Asker]:
        """A request that asks for places."""
        self._askers[key] += 1
        try:
            yield Asker(key)
        finally:
            self._askers[key] -= 1
            if not self._askers[key]:
                del self._askers[key]

    @asynccontextmanager
    async def taken(self, asker: Asker, count: int) -> AsyncIterator[None]:
        """`count` places for one answer, as soon as its turn comes."""
        turn = max(asker.turn, self._turn)
        asker.turn = turn + count * self._askers[asker.key]
        given = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (turn, next(self._numbers), count, given))
        self._give()
        try:
            await given
        except asyncio.CancelledError:
            if not given.cancelled():  # it was given in the same turn of the event loop
                self._free += count
            self._give()
            raise
        try:
            yield
        finally:
            self._free += count
            self._give()

    def _give(self) -> None:
        while self._waiting:
            turn, _, count, given = self._waiting[0]
            if not given.done():
                if count > self._free:
                    return
                self._free -= count
                self._turn = turn
                given.set_result(None)
            heapq.heappop(self._waiting)
