"""Putting the senders' parts together: each rank of the trainer seals its own."""

import asyncio

from rollcall_protocol.ids import MemberId
from rollcall_protocol.manifest import Manifest, combine
from rollcall_protocol.messages import Sealed


class Parts:
    """Collects what `senders` - 1 other ranks say about their parts of each snapshot.

    Snapshots are numbered by the order in which they are taken, which is the same on all ranks.
    Belongs to one event loop.
    """

    def __init__(self, senders: int) -> None:
        self._senders = senders
        self._ranks: dict[MemberId, int] = {}
        self._parts: dict[int, dict[int, Manifest]] = {}
        self._waiting_for = 0
        self._arrived = asyncio.Event()

    def registered(self, member: MemberId, rank: int) -> None:
        """The stream of a sender opened."""
        self._ranks[member] = rank

    def sealed(self, member: MemberId, message: Sealed) -> None:
        """A rank has sealed its part; told again after it lost its stream."""
        rank = self._ranks.get(member)
        if rank is not None and message.number >= self._waiting_for:
            self._parts.setdefault(message.number, {})[rank] = message.part
            self._arrived.set()

    async def whole(self, own: Manifest) -> Manifest:
        """The next snapshot's manifest, once all parts are sealed; `own` is rank 0's part.

        Waits as long as the other ranks take: a rank that died ends the whole trainer.
        """
        if self._senders == 1:
            return own
        number = self._waiting_for
        while len(found := self._parts.get(number, {})) < self._senders - 1:
            self._arrived.clear()
            await self._arrived.wait()
        del self._parts[number]
        self._waiting_for += 1
        return combine([own, *(found[rank] for rank in range(1, self._senders))])
