"""Collects the parts of a snapshot that the other trainer ranks hold and send."""

import asyncio
from collections.abc import Callable

from rollcall_protocol.wire.ids import MemberId, Version
from rollcall_protocol.wire.messages import (
    DigestsWanted,
    PartDigests,
    SnapshotPartReady,
    VersionAssigned,
)
from rollcall_protocol.wire.weight_manifest import WeightManifest, combine_manifests
from rollcall_runtime.sync.errors import SyncError


class SenderParts:
    """The manifests of the parts that the other `senders` - 1 ranks have ready, by snapshot.

    Snapshots are numbered in the order in which they are taken, which is the same on all ranks.
    `patience`: seconds to wait for parts; None where the trainer restarts when a rank dies. Belongs
    to one event loop.
    """

    def __init__(
        self,
        senders: int,
        send: Callable[[MemberId, VersionAssigned | DigestsWanted], None],
        *,
        patience: float | None = None,
    ) -> None:
        self._senders, self._send, self._patience = senders, send, patience
        self._named: VersionAssigned | None = None
        self._ranks: dict[MemberId, int] = {}
        self._parts: dict[int, dict[int, SnapshotPartReady]] = {}
        self._waiting_for = 0
        self._arrived = asyncio.Event()
        self._digests: dict[tuple[Version, int], asyncio.Future[tuple[str, ...] | None]] = {}

    @property
    def awaited(self) -> int:
        """The snapshot that is published next."""
        return self._waiting_for

    def skip(self) -> int:
        """Await the parts of the snapshot after; returns its number.

        So those of a publication that failed are not taken for those of the next.
        """
        self._parts.pop(self._waiting_for, None)
        self._waiting_for += 1
        return self._waiting_for

    def connected(self, member: MemberId, rank: int) -> None:
        """The stream of the sender with this rank opened."""
        self._ranks[member] = rank
        if self._named is not None:
            self._send(member, self._named)
        for version, asked in self._digests:
            if asked == rank:
                self._send(member, DigestsWanted(version))

    def sends(self, member: MemberId) -> bool:
        """Whether `member` is a sender whose stream is open."""
        return member in self._ranks

    def disconnected(self, member: MemberId) -> None:
        """The stream of a member ended."""
        self._ranks.pop(member, None)

    def part_ready(self, member: MemberId, message: SnapshotPartReady) -> None:
        """A rank has its part ready; it reports that again on each new stream."""
        rank = self._ranks.get(member)
        if rank is not None and message.number >= self._waiting_for:
            self._parts.setdefault(message.number, {})[rank] = message
            self._arrived.set()

    async def wait_for_all(
        self, version: Version, own: WeightManifest
    ) -> tuple[WeightManifest, tuple[WeightManifest | None, ...]]:
        """Wait for all parts of the next snapshot, which is `version`; `own` is rank 0's part.

        Returns the manifest of the whole, and the manifests of the other ranks' deltas from the
        version before (None for a rank without one). Sends VersionAssigned to the senders.
        SyncError after `patience` seconds.
        """
        if self._senders == 1:
            return own, ()
        number = self._waiting_for
        found = await self._all_parts(number)
        del self._parts[number]
        self._waiting_for, self._named = number + 1, VersionAssigned(number, version)
        for member in self._ranks:
            self._send(member, self._named)
        sealed = [found[rank] for rank in range(1, self._senders)]
        return combine_manifests([own, *(one.part for one in sealed)]), tuple(
            one.delta for one in sealed
        )

    async def digests(self, version: Version) -> tuple[str, ...]:
        """The BLAKE3 digests of the other ranks' parts of `version`, in their order.

        There is no deadline here. SyncError when a rank no longer holds its part.
        """
        ranks = range(1, self._senders)
        try:
            found = await asyncio.gather(*[self._ask(version, rank) for rank in ranks])
        finally:
            for rank in ranks:
                self._digests.pop((version, rank), None)
        if None in found:
            rank = found.index(None) + 1
            raise SyncError(f"trainer rank {rank} no longer holds its part of {version}")
        return tuple(digest for digests in found if digests for digest in digests)

    def digests_arrived(self, member: MemberId, message: PartDigests) -> None:
        """A rank answers; an answer that no `digests` waits for is ignored."""
        asked = self._digests.get((message.version, self._ranks.get(member, 0)))
        if asked is not None and not asked.done():
            asked.set_result(message.digests)

    async def _all_parts(self, number: int) -> dict[int, SnapshotPartReady]:
        try:
            async with asyncio.timeout(self._patience):
                while len(found := self._parts.get(number, {})) < self._senders - 1:
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            missing = sorted({*range(1, self._senders)} - self._parts.get(number, {}).keys())
            raise SyncError(
                f"trainer ranks {missing} have not said in {self._patience:g} s that their parts "
                "of the weights are ready; see their logs"
            ) from None
        return found

    def _ask(self, version: Version, rank: int) -> asyncio.Future[tuple[str, ...] | None]:
        answer = asyncio.get_running_loop().create_future()
        self._digests[version, rank] = answer
        for member in [member for member, own in self._ranks.items() if own == rank][:1]:
            self._send(member, DigestsWanted(version))
        return answer
