"""Putting the senders' parts together: each rank of the trainer seals its own."""

import asyncio
from collections.abc import Callable

from rollcall_protocol.wire.ids import MemberId, Version
from rollcall_protocol.wire.messages import SnapshotPartReady, VersionAssigned
from rollcall_protocol.wire.weight_manifest import WeightManifest, combine_manifests


class SenderParts:
    """Collects what `senders` - 1 other ranks say about their parts of each snapshot.

    Snapshots are numbered by the order in which they are taken, which is the same on all ranks.
    Belongs to one event loop.
    """

    def __init__(self, senders: int, send: Callable[[MemberId, VersionAssigned], None]) -> None:
        self._senders, self._send = senders, send
        self._named: VersionAssigned | None = None
        self._ranks: dict[MemberId, int] = {}
        self._parts: dict[int, dict[int, SnapshotPartReady]] = {}
        self._waiting_for = 0
        self._arrived = asyncio.Event()

    def registered(self, member: MemberId, rank: int) -> None:
        """The stream of a sender opened."""
        self._ranks[member] = rank
        if self._named is not None:
            self._send(member, self._named)

    def left(self, member: MemberId) -> None:
        """A stream ended."""
        self._ranks.pop(member, None)

    def sealed(self, member: MemberId, message: SnapshotPartReady) -> None:
        """A rank has sealed its part; told again after it lost its stream."""
        rank = self._ranks.get(member)
        if rank is not None and message.number >= self._waiting_for:
            self._parts.setdefault(message.number, {})[rank] = message
            self._arrived.set()

    async def whole(
        self, version: Version, own: WeightManifest
    ) -> tuple[WeightManifest, tuple[WeightManifest | None, ...]]:
        """The manifest of `version`, once all parts are sealed; `own` is rank 0's part.

        And what describes the other ranks' deltas from the version before, if there are any.

        Versions are taken in the order of snapshots, and the senders are told which is which. Waits
        as long as the other ranks take: one that died ends the whole trainer.
        """
        if self._senders == 1:
            return own, ()
        number = self._waiting_for
        while len(found := self._parts.get(number, {})) < self._senders - 1:
            self._arrived.clear()
            await self._arrived.wait()
        del self._parts[number]
        self._waiting_for, self._named = number + 1, VersionAssigned(number, version)
        for member in self._ranks:
            self._send(member, self._named)
        sealed = [found[rank] for rank in range(1, self._senders)]
        return combine_manifests([own, *(one.part for one in sealed)]), tuple(
            one.delta for one in sealed
        )
