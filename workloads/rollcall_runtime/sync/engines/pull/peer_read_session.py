"""A session of a peer engine: receivers read registered memory along a star, tree or chain.

A session only decides who reads from whom, so forming one rebuilds nothing. What neighbours need to
know of each other goes through the rendezvous (see `announcements`). A receiver lets others read
what it has checked while later buckets still arrive.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from rollcall_protocol.wire.ids import MemberId, SessionId
from rollcall_protocol.wire.messages import Seat
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.bucket_transfer import BucketTransfer, compare_digests
from rollcall_runtime.sync.engine import decode_descriptor
from rollcall_runtime.sync.engines.common.threaded_engine import ThreadedSession
from rollcall_runtime.sync.engines.pull.announcements import Announcements
from rollcall_runtime.sync.engines.pull.bucket_reader import BucketReader
from rollcall_runtime.sync.engines.pull.engine import PullEngine, PullSettings
from rollcall_runtime.sync.engines.pull.pending_reads import PendingReads
from rollcall_runtime.sync.engines.pull.topology import (
    Topology,
    choose,
    downstream,
    hops,
    ranks_of_same_shard,
    upstream,
)
from rollcall_runtime.sync.errors import DigestMismatchError, SyncError, TransferFailedError
from rollcall_runtime.sync.memory.buffers import Buffer
from rollcall_runtime.sync.rendezvous import SessionRendezvous


class PullSession(ThreadedSession):
    """One member's place among those that read from each other."""

    _keeps_rendezvous: ClassVar[bool] = True

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
        self._pull_engine = engine
        settings = engine.settings_as(PullSettings)
        self._topology, self._drain_timeout = Topology(settings.topology), settings.drain_timeout
        self._publications = 0
        self.reads = PendingReads(sleep=self._sleep, library_errors=self._library_errors)
        self._read_from: MemberId | None = None
        self._transfer: BucketTransfer | None = None

    def _join(self, deadline: float) -> None:
        self._pull_engine.begin_session()
        super()._join(deadline)

    def _connect(self, rendezvous: SessionRendezvous, deadline: float) -> None:
        """Nothing to do: neighbours connect when there is something to read."""

    def _send(self, buffer: Buffer, manifest: WeightManifest, deadline: float) -> None:
        announcements = self._next_publication(manifest, deadline)
        with buffer.hold(), self._pull_engine.sent(buffer) as source:
            announcements.announce_source(source)
            self._wait_for_readers(announcements, self._ranks_to_wait_for(), deadline)
        for bucket in range(len(manifest.digests)):
            self._trace_bucket(bucket)

    def _receive(self, buffer: Buffer, manifest: WeightManifest, deadline: float) -> None:
        self._pull(buffer, manifest, None, deadline)

    def _receive_buckets(
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
        announcements = self._next_publication(manifest, deadline)
        source = announcements.wait_for_sender(deadline)
        kept = manifest if only is None else manifest.only(only)
        above, readers, distance = self._neighbours(len(kept.digests))
        exposed = bool(readers) or self._pull_engine.registers_targets
        with buffer.hold(), self._checked_again(buffer, kept, only, exposed=exposed) as own:
            if readers:
                announcements.announce_source(own)
            if above:
                source = announcements.wait_for_source(above, deadline)
            self._read_from = self.seats[above].member
            reader = BucketReader(
                self._pull_engine,
                self.reads,
                announcements,
                upstream=above,
                peer=self._read_from,
                source=source,
                buffer=buffer,
                manifest=manifest,
                bucket_done=self._trace_bucket,
                aborted=lambda: self.aborted,
                only=only,
                hops=distance,
            )
            self._transfer = BucketTransfer(
                start=reader.start,
                raise_if_aborted=self._raise_if_aborted,
                settings=self.settings,
                bucket_done=reader.bucket_checked,
            )
            with self._naming(above):
                self._transfer.fill(buffer, kept, deadline, numbers=only, merge_small=True)
            self._read_from = None
            self._wait_for_readers(announcements, readers, deadline)

    @contextmanager
    def _checked_again(
        self,
        buffer: Buffer,
        manifest: WeightManifest,
        numbers: Sequence[int] | None = None,
        *,
        exposed: bool,
    ) -> Iterator[dict[str, Any]]:
        """Register the buffer meanwhile if it is to be `exposed`; yields how to read from it.

        Peers may have written to it after its buckets were checked, so all are checked again.
        """
        if not exposed:
            yield {}
            return
        with self._pull_engine.registered(buffer) as own:
            yield own
        if not self._pull_engine.keeps_registered:
            compare_digests(buffer, manifest, numbers)

    @contextmanager
    def _naming(self, rank: int) -> Iterator[None]:
        """Name the member at `rank` in the error when its weights are wrong."""
        try:
            yield
        except DigestMismatchError as error:
            raise DigestMismatchError(str(error), peer=self.seats[rank].member) from error

    def _neighbours(self, buckets: int) -> tuple[int, tuple[int, ...], int]:
        """The rank to read from, the ranks that read from here, and hops from the sender."""
        shards = [str(decode_descriptor(seat).get("shard", "")) for seat in self.seats]
        ranks = ranks_of_same_shard(shards, self.rank)
        place = ranks.index(self.rank)
        topology = choose(self._topology, receivers=len(ranks) - 1, buckets=buckets)
        below = downstream(place, len(ranks), topology)
        readers = tuple(ranks[other] for other in below)
        return ranks[upstream(place, topology)], readers, hops(place, topology)

    def _ranks_to_wait_for(self) -> Sequence[int]:
        """The ranks that must hold everything before the sender's call returns."""
        return range(1, len(self.seats))

    def _next_publication(self, manifest: WeightManifest, deadline: float) -> Announcements:
        if self._rendezvous is None:
            raise TransferFailedError(f"{self.name} was not joined")
        self._rendezvous.deadline = deadline
        self._publications += 1
        return Announcements(
            self._rendezvous,
            name=self.name,
            number=self._publications,
            seats=self.seats,
            rank=self.rank,
            manifest=manifest,
            operation_bytes=self.settings.operation_bytes,
        )

    def _wait_for_readers(
        self, announcements: Announcements, ranks: Sequence[int], deadline: float
    ) -> None:
        announcements.wait_for_readers(
            ranks, deadline, operation_timeout=self.settings.operation_timeout
        )

    def _disconnect(self) -> None:
        if not self._drain(self._drain_timeout):
            self._pull_engine.drain_later(self._drain)

    def _drain(self, seconds: float) -> bool:
        """Whether all reads end within `seconds`, well or not; the buffer is free then."""
        if not self.reads.drain(seconds):
            return False
        if self._transfer is not None:
            self._transfer.drain()  # all reads have ended: it releases its own holds
            self._transfer = None  # it refers back to this session, which would keep the buffer
        return True

    def _to_sync_error(self, error: Exception) -> SyncError:
        return TransferFailedError(f"{self.name}: {error}", peer=self._read_from)
