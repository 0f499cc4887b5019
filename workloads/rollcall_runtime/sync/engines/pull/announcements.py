"""What the members of a pull session announce to each other through the rendezvous.

For the session's n-th publication the table has n/source/RANK, how to read from RANK, and
n/have/RANK/STRETCH, that others may read a stretch of buckets from RANK. A stretch is as many
consecutive buckets as one operation holds, so that small buckets cost one announcement together.
"""

import json
import time
from collections.abc import Sequence
from typing import Any

from rollcall_protocol.wire.messages import Seat
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.errors import DigestMismatchError, TimedOutError
from rollcall_runtime.sync.rendezvous import SessionRendezvous


class Announcements:
    """The announcements of one publication, as the member of `rank` reads and writes them.

    `number` counts the session's publications. Methods raise the errors of `SessionRendezvous`.
    """

    def __init__(
        self,
        rendezvous: SessionRendezvous,
        *,
        name: str,
        number: int,
        seats: Sequence[Seat],
        rank: int,
        manifest: WeightManifest,
        operation_bytes: int,
    ) -> None:
        self._rendezvous, self._name, self._number = rendezvous, name, number
        self._seats, self._rank = seats, rank
        self._manifest = manifest
        self._buckets_in_stretch = max(1, operation_bytes // manifest.bucket_bytes)

    def stretch_of(self, bucket: int) -> int:
        """The number of the stretch that `bucket` belongs to."""
        return bucket // self._buckets_in_stretch

    def announce_source(self, source: dict[str, Any]) -> None:
        """Say how to read from this rank."""
        sizes = {"bytes": self._manifest.total_bytes, "bucket": self._manifest.bucket_bytes}
        self._rendezvous.put(self._source_key(self._rank), json.dumps(source | sizes).encode())

    def wait_for_sender(self, deadline: float) -> dict[str, Any]:
        """How to read from the sender; DigestMismatchError if it sends another layout."""
        source = self.wait_for_source(0, deadline)
        announced = (source["bytes"], source["bucket"])
        expected = (self._manifest.total_bytes, self._manifest.bucket_bytes)
        if announced != expected:
            raise DigestMismatchError(
                f"the sender announces (bytes, bucket bytes) {announced}, "
                f"the manifest has {expected}"
            )
        return source

    def wait_for_source(self, rank: int, deadline: float) -> dict[str, Any]:
        """How to read from `rank`; TimedOutError."""
        (value,) = self._wait([self._source_key(rank)], deadline, ranks=[rank], what="its address")
        source: dict[str, Any] = json.loads(value)
        return source

    def announce_buckets(self, bucket: int, following: int) -> None:
        """Let others read this rank's buckets from `bucket` on and before `following`.

        Announces whole stretches. A bucket that this receiver leaves out is read by no other
        member, so it counts as held.
        """
        last = len(self._manifest.digests) - 1
        complete = following > last >= 0
        end = self.stretch_of(last) + 1 if complete else self.stretch_of(following)
        for stretch in range(self.stretch_of(bucket), end):
            self._rendezvous.put(self._have_key(self._rank, stretch), b"")

    def has_stretch(self, rank: int, stretch: int) -> bool:
        """Whether `rank` has announced the stretch already."""
        keys = [self._have_key(rank, stretch)]
        return self._rendezvous.wait(keys, deadline=time.monotonic())[0] is not None

    def wait_for_stretch(self, rank: int, stretch: int, seconds: float) -> None:
        """Wait until `rank` has announced the stretch; TimedOutError, which names it."""
        keys = [self._have_key(rank, stretch)]
        self._wait(keys, time.monotonic() + seconds, ranks=[rank], what=self._buckets(stretch))

    def wait_for_readers(
        self, ranks: Sequence[int], deadline: float, *, operation_timeout: float
    ) -> None:
        """Wait until `ranks` hold everything. Each stretch has `operation_timeout` at each of
        them: in a chain the last one gets it when all others have it.
        """
        last = len(self._manifest.digests) - 1
        for stretch in range(self.stretch_of(last) + 1 if ranks and last >= 0 else 0):
            keys = [self._have_key(rank, stretch) for rank in ranks]
            lacking, before = len(keys), len(keys) + 1
            while 0 < lacking < before:
                soon = min(deadline, time.monotonic() + operation_timeout)
                values = self._rendezvous.wait(keys, deadline=soon)
                before, lacking = lacking, values.count(None)
            if lacking:
                now = time.monotonic()
                self._wait(keys, now, ranks=ranks, what=self._buckets(stretch))

    def _buckets(self, stretch: int) -> str:
        first = stretch * self._buckets_in_stretch
        last = min(first + self._buckets_in_stretch, len(self._manifest.digests)) - 1
        return f"buckets {first} to {last}"

    def _source_key(self, rank: int) -> str:
        return f"{self._number}/source/{rank}"

    def _have_key(self, rank: int, stretch: int) -> str:
        return f"{self._number}/have/{rank}/{stretch}"

    def _wait(
        self, keys: Sequence[str], deadline: float, *, ranks: Sequence[int], what: str
    ) -> list[bytes]:
        """The values of `keys`; TimedOutError names the first of `ranks` whose key is missing."""
        values = self._rendezvous.wait(keys, deadline=deadline)
        for value, rank in zip(values, ranks, strict=True):
            if value is None:
                raise TimedOutError(
                    f"{self._name}: timed out waiting for rank {rank} to announce {what}",
                    peer=self._seats[rank].member,
                )
        return [value for value in values if value is not None]
