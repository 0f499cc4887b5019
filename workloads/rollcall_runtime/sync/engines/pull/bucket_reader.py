"""One publication, read from a neighbour's memory bucket by bucket."""

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.memory.buffers import Buffer

if TYPE_CHECKING:
    from rollcall_runtime.sync.engines.pull.pending_reads import Flight
    from rollcall_runtime.sync.engines.pull.session import PullSession


class Reader:
    """Reads one publication from upstream, in order; `only` some of its buckets, if given.

    What upstream does not hold yet is begun later, so that nobody who waits for it keeps back what
    has arrived. An operation has its timeout at each of the `patience` members that bytes pass.
    """

    def __init__(
        self,
        session: "PullSession",
        *,
        number: int,
        source: int,
        told: dict[str, Any],
        buffer: Buffer,
        manifest: WeightManifest,
        only: Sequence[int] | None = None,
        patience: int = 1,
    ) -> None:
        self._session, self._number, self._source = session, number, source
        self._remote, self._local = int(told["address"]), buffer
        self._manifest, self._position = manifest, 0
        self._patience = patience
        self._peer = session.pulls.reach(told)
        self._only = range(len(manifest.checksums)) if only is None else only
        self._held = -1  # the last stretch that upstream is known to hold
        self._waiting: deque[_Operation] = deque()
        session.holds(number, 0, self._following(-1), manifest)

    def start(self, chunk: memoryview, seconds: float) -> "_Operation":
        """Read the next chunk, as soon as upstream holds its buckets."""
        start, size = self._position, self._manifest.bucket_bytes
        self._position += len(chunk)
        remote, stretch = start, -1
        if self._source:  # it holds what is held here, once it has the last of these buckets
            last = self._only[(self._position - 1) // size]
            stretch = self._session.stretch(last, self._manifest)
        else:  # the sender holds everything
            remote = self._only[start // size] * size + start % size
        operation = _Operation(self, start, remote, len(chunk), stretch, seconds)
        self._waiting.append(operation)
        self.proceed(0.0)
        return operation

    def landed(self, bucket: int) -> None:
        """The `bucket`-th of those that are taken is here and was compared: others may read it."""
        number = self._only[bucket]
        self._session._landed(number)  # noqa: SLF001 - a part of its session
        self._session.holds(self._number, number, self._following(bucket), self._manifest)

    def proceed(self, seconds: float) -> None:
        """Begin what upstream holds. With `seconds`, something is begun or TimedOutError raised."""
        if self._session.aborted:
            raise RuntimeError("given up before it began")
        while self._waiting:
            operation = self._waiting[0]
            if operation.stretch > self._held and not self._ask(operation.stretch, seconds):
                return
            self._waiting.popleft()
            self._begin(operation)
            seconds = 0.0

    def _ask(self, stretch: int, seconds: float) -> bool:
        key = f"{self._number}/have/{self._source}/{stretch}"
        if seconds:
            self._session.wait_for(key, seconds * self._patience, self._source)
        elif not self._session.knows(key):
            return False
        self._held = stretch
        return True

    def _begin(self, operation: "_Operation") -> None:
        session, nbytes = self._session, operation.nbytes
        read = session.pulls.read(
            self._peer,
            remote=self._remote + operation.remote,
            local=self._local.address + operation.start,
            nbytes=nbytes,
        )
        session.pulls.count_read(nbytes)
        operation.flight = session.flights.add(
            read,
            self._local.pin(),
            seconds=operation.seconds,
            peer=session.seats[self._source].member,
        )

    def _following(self, index: int) -> int:
        """The bucket that is taken after the `index`-th; beyond the last when it is that."""
        after = index + 1
        return self._only[after] if after < len(self._only) else len(self._manifest.checksums)


class _Operation:
    """A read that may not have begun; `stretch` is what upstream must hold first."""

    def __init__(
        self, reader: Reader, start: int, remote: int, nbytes: int, stretch: int, seconds: float
    ) -> None:
        self._reader = reader
        self.start, self.remote, self.nbytes = start, remote, nbytes
        self.stretch, self.seconds = stretch, seconds
        self.flight: Flight | None = None

    def wait(self) -> None:
        """Until the bytes are here; raises what the session or the transport says."""
        while self.flight is None:
            self._reader.proceed(self.seconds)
        self.flight.wait()
