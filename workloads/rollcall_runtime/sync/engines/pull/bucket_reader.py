"""One publication, read from a neighbour's memory bucket by bucket."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from rollcall_protocol.wire.ids import MemberId
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.engines.pull.announcements import Announcements
from rollcall_runtime.sync.engines.pull.engine import PullEngine
from rollcall_runtime.sync.engines.pull.pending_reads import PendingRead, PendingReads
from rollcall_runtime.sync.memory.buffers import Buffer


class BucketReader:
    """Reads one publication from upstream, in order; `only` some of its buckets, if given.

    `upstream` is the rank that is read from and `peer` its member; `source` is how to read from it.
    What upstream does not hold yet is begun later, so that a caller that waits for it does not hold
    back what has arrived. An operation has its timeout at each of the `hops` members between the
    sender and this one. `bucket_done(number)` is called for each bucket that was received and
    checked; `aborted` says whether the session was aborted.
    """

    def __init__(
        self,
        engine: PullEngine,
        reads: PendingReads,
        announcements: Announcements,
        *,
        upstream: int,
        peer: MemberId,
        source: dict[str, Any],
        buffer: Buffer,
        manifest: WeightManifest,
        bucket_done: Callable[[int], None],
        aborted: Callable[[], bool],
        only: Sequence[int] | None = None,
        hops: int = 1,
    ) -> None:
        self._engine, self._reads, self._announcements = engine, reads, announcements
        self._upstream, self._peer = upstream, peer
        self._remote, self._local = int(source["address"]), buffer
        self._manifest, self._position = manifest, 0
        self._bucket_done, self._aborted = bucket_done, aborted
        self._hops = hops
        self._connection = engine.connect(source)
        self._only = range(len(manifest.digests)) if only is None else only
        self._held_upstream = -1  # the last stretch that upstream is known to hold
        self._queued: deque[_QueuedRead] = deque()
        announcements.announce_buckets(0, self._following(-1))

    def start(self, chunk: memoryview, seconds: float) -> "_QueuedRead":
        """Read the next chunk, as soon as upstream holds its buckets."""
        start, size = self._position, self._manifest.bucket_bytes
        self._position += len(chunk)
        remote, stretch = start, -1
        if self._upstream:  # upstream holds the same buckets, once it has the last of these
            stretch = self._announcements.stretch_of(self._only[(self._position - 1) // size])
        else:  # the sender holds every bucket
            remote = self._only[start // size] * size + start % size
        queued = _QueuedRead(self, start, remote, len(chunk), stretch, seconds)
        self._queued.append(queued)
        self.begin_queued(0.0)
        return queued

    def bucket_checked(self, bucket: int) -> None:
        """The `bucket`-th of the buckets that are read was received and checked; announce it."""
        number = self._only[bucket]
        self._bucket_done(number)
        self._announcements.announce_buckets(number, self._following(bucket))

    def begin_queued(self, seconds: float) -> None:
        """Begin the reads that upstream has the bytes for.

        With `seconds`, begins at least one, or raises TimedOutError.
        """
        if self._aborted():  # not an AbortedError: the caller that drains expects library errors
            raise RuntimeError("the session was aborted before this read began")
        while self._queued:
            queued = self._queued[0]
            if queued.stretch > self._held_upstream and not self._wait(queued.stretch, seconds):
                return
            self._queued.popleft()
            self._begin(queued)
            seconds = 0.0

    def _wait(self, stretch: int, seconds: float) -> bool:
        if seconds:
            self._announcements.wait_for_stretch(self._upstream, stretch, seconds * self._hops)
        elif not self._announcements.has_stretch(self._upstream, stretch):
            return False
        self._held_upstream = stretch
        return True

    def _begin(self, queued: "_QueuedRead") -> None:
        read = self._engine.read(
            self._connection,
            remote=self._remote + queued.remote,
            local=self._local.address + queued.start,
            nbytes=queued.nbytes,
        )
        self._engine.count_read(queued.nbytes)
        queued.pending = self._reads.add(
            read, self._local.hold(), seconds=queued.seconds, peer=self._peer
        )

    def _following(self, index: int) -> int:
        """The bucket that is read after the `index`-th; beyond the last when it is the last."""
        after = index + 1
        return self._only[after] if after < len(self._only) else len(self._manifest.digests)


class _QueuedRead:
    """A read that may not have begun; upstream must hold `stretch` first."""

    def __init__(
        self,
        reader: BucketReader,
        start: int,
        remote: int,
        nbytes: int,
        stretch: int,
        seconds: float,
    ) -> None:
        self._reader = reader
        self.start, self.remote, self.nbytes = start, remote, nbytes
        self.stretch, self.seconds = stretch, seconds
        self.pending: PendingRead | None = None

    def wait(self) -> None:
        """Until the bytes have arrived; raises what the session or the transport raises."""
        while self.pending is None:
            self._reader.begin_queued(self.seconds)
        self.pending.wait()
