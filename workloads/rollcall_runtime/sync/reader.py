"""One publication, read from a neighbour's memory bucket by bucket."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rollcall_protocol.manifest import Manifest
from rollcall_runtime.sync.buffers import Buffer
from rollcall_runtime.sync.reads import Flight

if TYPE_CHECKING:
    from rollcall_runtime.sync.pull import PullSession


class Reader:
    """Reads one publication from upstream, in order; `only` some of its buckets, if given.

    An operation has its timeout at each of the `patience` members that the bytes pass.
    """

    def __init__(
        self, session: "PullSession", *, number: int, source: int, told: dict[str, Any],
        buffer: Buffer, manifest: Manifest, only: Sequence[int] | None = None,
        patience: int = 1,
    ) -> None:  # fmt: skip
        self._session, self._number, self._source = session, number, source
        self._remote, self._local = int(told["address"]), buffer
        self._manifest, self._position = manifest, 0
        self._patience = patience
        self._peer = session.pulls.reach(told)
        self._only = range(len(manifest.checksums)) if only is None else only
        session.holds(number, 0, self._following(-1), manifest)

    def start(self, chunk: memoryview, seconds: float) -> Flight:
        """Read the next chunk, once upstream holds its bucket."""
        session, start = self._session, self._position
        self._position += len(chunk)
        index, inside = divmod(start, self._manifest.bucket_bytes)
        bucket = self._only[index]
        remote = bucket * self._manifest.bucket_bytes + inside
        if self._source:
            remote = start  # it holds what is held here
            stretch = session.stretch(bucket, self._manifest)
            key = f"{self._number}/have/{self._source}/{stretch}"
            session.wait_for(key, seconds * self._patience, self._source)
        read = session.pulls.read(
            self._peer, remote=self._remote + remote, local=self._local.address + start,
            nbytes=len(chunk),
        )  # fmt: skip
        session.pulls.count_read(len(chunk))
        return session.flights.add(
            read, self._local.pin(), seconds=seconds, peer=session.seats[self._source].member
        )

    def landed(self, bucket: int) -> None:
        """The `bucket`-th of those that are taken is here and was compared: others may read it."""
        number = self._only[bucket]
        self._session._landed(number)  # noqa: SLF001 - a part of its session
        self._session.holds(self._number, number, self._following(bucket), self._manifest)

    def _following(self, index: int) -> int:
        """The bucket that is taken after the `index`-th; beyond the last when it is that."""
        after = index + 1
        return self._only[after] if after < len(self._only) else len(self._manifest.checksums)
