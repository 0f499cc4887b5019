"""Peer engines' common half: receivers read from registered memory, along a star, tree or chain.

A session only decides who reads from whom, so forming one rebuilds nothing. The rendezvous' room
carries what neighbours must know of each other: where the bytes are, and which buckets may be read.
A receiver passes on what it has verified while later buckets still arrive.

Keys in the room, for the session's n-th publication: n/source/RANK says how to read from RANK,
n/have/RANK/STRETCH that RANK holds a stretch of buckets.
"""

import json
import time
from collections.abc import Sequence
from typing import Any, ClassVar

from rollcall_protocol.wire.ids import MemberId, SessionId
from rollcall_protocol.wire.messages import Seat
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.bucket_transfer import BucketTransfer
from rollcall_runtime.sync.engine import decode_descriptor
from rollcall_runtime.sync.engines.common.threaded_engine import ThreadedSession
from rollcall_runtime.sync.engines.pull.bucket_reader import Reader
from rollcall_runtime.sync.engines.pull.engine import PullEngine, PullSettings
from rollcall_runtime.sync.engines.pull.pending_reads import Flights
from rollcall_runtime.sync.engines.pull.topology import (
    Topology,
    choose,
    downstream,
    hops,
    line,
    upstream,
)
from rollcall_runtime.sync.errors import ChecksumMismatchError, SyncError, TimedOutError
from rollcall_runtime.sync.errors import TransferFailedError as Failed
from rollcall_runtime.sync.memory.buffers import Buffer
from rollcall_runtime.sync.rendezvous import Rendezvous


class PullSession(ThreadedSession):
    """One member's neighbours."""

    _stays: ClassVar[bool] = True

    def __init__(
        self,
        *,
        group: str,
        session: SessionId,
        seats: Sequence[Seat],
        rank: int,
        engine: PullEngine,
    ) -> None:
        super().__init__(group=group, session=session, seats=seats, rank=rank, engine=engine)
        self.pulls = engine
        settings = engine.settings_as(PullSettings)
        self._wanted, self._drain_timeout = Topology(settings.topology), settings.drain_timeout
        self._publications = 0
        self.flights = Flights(rest=self._rest, faults=self._faults)
        self.source: MemberId | None = None  # who is read from
        self._mover: BucketTransfer | None = None

    def _join(self, deadline: float) -> None:
        self.pulls.refresh()
        super()._join(deadline)

    def _connect(self, rendezvous: Rendezvous, deadline: float) -> None:
        """The room is all that is needed; neighbours are known when there is something to read."""

    def _send(self, buffer: Buffer, manifest: WeightManifest, deadline: float) -> None:
        number = self._next(deadline)
        with buffer.pin():
            self._tell_source(number, buffer, manifest)
            self._await_readers(number, self._readers(), manifest, deadline)
        for bucket in range(len(manifest.checksums)):
            self._landed(bucket)

    def _take(self, buffer: Buffer, manifest: WeightManifest, deadline: float) -> None:
        self._pull(buffer, manifest, None, deadline)

    def _take_buckets(
        self, buffer: Buffer, manifest: WeightManifest, only: tuple[int, ...], deadline: float
    ) -> None:
        self._pull(buffer, manifest, only, deadline)

    def _pull(
        self,
        buffer: Buffer,
        manifest: WeightManifest,
        only: tuple[int, ...] | None,
        deadline: float,
    ) -> None:
        """Read all buckets, or some, which `buffer` then holds one after the other."""
        number = self._next(deadline)
        told = self._await_source(number, manifest, deadline)
        kept = manifest if only is None else manifest.only(only)
        source, readers, patience = self._neighbours(len(kept.checksums))
        with buffer.pin():
            self.pulls.source(buffer)
            if readers:
                self._tell_source(number, buffer, manifest)
            if source:
                told = json.loads(self._wait([f"{number}/source/{source}"], deadline)[0])
            self.source = self.seats[source].member
            reader = Reader(
                self,
                number=number,
                source=source,
                told=told,
                buffer=buffer,
                manifest=manifest,
                only=only,
                patience=patience,
            )
            self._mover = BucketTransfer(
                start=reader.start,
                stop=self._check,
                settings=self.settings,
                landed=reader.landed,
            )
            self._mover.fill(buffer, kept, deadline, numbers=only, together=True)
            self.source = None
            self._await_readers(number, readers, manifest, deadline)

    def _neighbours(self, buckets: int) -> tuple[int, tuple[int, ...], int]:
        """The rank to read from, those that read here, and how far away the sender is."""
        shards = [str(decode_descriptor(seat).get("shard", "")) for seat in self.seats]
        ranks = line(shards, self.rank)
        place = ranks.index(self.rank)
        topology = choose(self._wanted, receivers=len(ranks) - 1, buckets=buckets)
        below = downstream(place, len(ranks), topology)
        readers = tuple(ranks[other] for other in below)
        return ranks[upstream(place, topology)], readers, hops(place, topology)

    def _readers(self) -> Sequence[int]:
        """The ranks that the sender waits for."""
        return range(1, len(self.seats))

    def _await_source(
        self, number: int, manifest: WeightManifest, deadline: float
    ) -> dict[str, Any]:
        """How to read from the sender; ChecksumMismatchError if it sends something else."""
        told: dict[str, Any] = json.loads(self._wait([f"{number}/source/0"], deadline)[0])
        announced = (told["bytes"], told["bucket"])
        if announced != (manifest.total_bytes, manifest.bucket_bytes):
            raise ChecksumMismatchError(
                f"the sender announces {announced}, the manifest says "
                f"{(manifest.total_bytes, manifest.bucket_bytes)}"
            )
        return told

    def _disconnect(self) -> None:
        if not self.settled(self._drain_timeout):
            self.pulls.leave(self)

    def settled(self, seconds: float) -> bool:
        """Whether all reads end within `seconds`, well or not; the buffer is free then."""
        if not self.flights.drain(seconds):
            return False
        if self._mover is not None:
            self._mover.drain()  # all has ended: it lets go of its own pins
            self._mover = None  # it leads back here, which would keep the buffer
        return True

    def _explain(self, error: Exception) -> SyncError:
        return Failed(f"{self.name}: {error}", peer=self.source)

    def wait_for(self, key: str, seconds: float, rank: int) -> None:
        """Wait until `rank` has told `key`; TimedOutError."""
        self._wait([key], time.monotonic() + seconds, who=[rank])

    def knows(self, key: str) -> bool:
        """Whether `key` was told already."""
        return self._look([key], time.monotonic())[0] is not None

    def holds(self, number: int, bucket: int, following: int, manifest: WeightManifest) -> None:
        """Buckets of the `number`-th publication before `following` may be read here, from
        `bucket` on; tell of whole stretches. What this receiver leaves out nobody reads here.
        """
        last = len(manifest.checksums) - 1
        ends = following > last >= 0
        end = self.stretch(last, manifest) + 1 if ends else self.stretch(following, manifest)
        for stretch in range(self.stretch(bucket, manifest), end):
            self._tell(f"{number}/have/{self.rank}/{stretch}", b"")

    def _next(self, deadline: float) -> int:
        if self._room is None:
            raise Failed(f"{self.name} was not joined")
        self._room.deadline = deadline
        self._publications += 1
        return self._publications

    def _tell_source(self, number: int, buffer: Buffer, manifest: WeightManifest) -> None:
        sizes = {"bytes": manifest.total_bytes, "bucket": manifest.bucket_bytes}
        told = json.dumps(self.pulls.source(buffer) | sizes).encode()
        self._tell(f"{number}/source/{self.rank}", told)

    def _tell(self, key: str, value: bytes) -> None:
        if self._room is None:
            raise Failed(f"{self.name} has no room")
        self._room.put(key, value)

    def _wait(
        self, keys: Sequence[str], deadline: float, *, who: Sequence[int] = ()
    ) -> list[bytes]:
        """The values of `keys`; TimedOutError names the first of `who` that did not tell."""
        values = self._look(keys, deadline)
        for index, value in enumerate(values):
            if value is None:
                peer = self.seats[who[index]].member if who else None
                raise TimedOutError(f"{self.name}: nobody told {keys[index]}", peer=peer)
        return [value for value in values if value is not None]

    def _look(self, keys: Sequence[str], deadline: float) -> tuple[bytes | None, ...]:
        if self._room is None:
            raise Failed(f"{self.name} has no room")
        return self._room.wait(keys, deadline=deadline)

    def _await_readers(
        self, number: int, ranks: Sequence[int], manifest: WeightManifest, deadline: float
    ) -> None:
        """Wait until `ranks` hold everything. Each stretch has `operation_timeout` at each of
        them: in a chain the last one gets it when all others have it.
        """
        last = len(manifest.checksums) - 1
        for stretch in range(self.stretch(last, manifest) + 1 if ranks and last >= 0 else 0):
            keys = [f"{number}/have/{rank}/{stretch}" for rank in ranks]
            lacking, before = len(keys), len(keys) + 1
            while 0 < lacking < before:
                soon = min(deadline, time.monotonic() + self.settings.operation_timeout)
                before, lacking = lacking, self._look(keys, soon).count(None)
            if lacking:
                self._wait(keys, time.monotonic(), who=ranks)

    def stretch(self, bucket: int, manifest: WeightManifest) -> int:
        """Small buckets are told of together, as many as an operation holds."""
        return bucket // max(1, self.settings.operation_bytes // manifest.bucket_bytes)
