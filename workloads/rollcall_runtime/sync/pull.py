"""Peer engines' common half: receivers read from registered memory, along a star, tree or chain.

Memory is registered once, for as long as its buffer lives; a session only decides who reads from
whom, so forming one rebuilds nothing. The rendezvous' room carries what neighbours must know of
each other: where the bytes are, and which buckets may be read. A receiver passes on what it has
verified while later buckets still arrive.

Keys in the room, for the session's n-th publication: n/source/RANK says how to read from RANK,
n/have/RANK/STRETCH that RANK holds a stretch of buckets.
"""

import contextlib
import json
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rollcall_protocol.ids import MemberId, SessionId
from rollcall_protocol.manifest import Manifest
from rollcall_protocol.messages import Seat
from rollcall_runtime.sync.buckets import BucketMover
from rollcall_runtime.sync.buffers import Buffer, Pin, WholeBuffer
from rollcall_runtime.sync.engine import SyncSettings, descriptor_of
from rollcall_runtime.sync.errors import ChecksumMismatchError, SyncError, TimedOutError
from rollcall_runtime.sync.errors import TransferFailedError as Failed
from rollcall_runtime.sync.rendezvous import Rendezvous
from rollcall_runtime.sync.sessions import OwnedEngine, OwnedSession
from rollcall_runtime.sync.topology import Topology, choose, downstream, line, upstream

_FIRST_REST, _LONGEST_REST = 0.0001, 0.002  # seconds between two looks at a read


@dataclass(frozen=True, slots=True)
class PullSettings(SyncSettings):
    """`topology` is auto, star, tree or chain.

    A read that was given up may go on writing until its source dies; its buffer is lent to nobody
    for `drain_timeout` seconds, and if it has not ended by then, never again.
    """

    operation_bytes: int = 16 << 20
    topology: str = Topology.AUTO.value
    drain_timeout: float = 30.0

    def __post_init__(self) -> None:
        SyncSettings.__post_init__(self)
        if self.topology not in set(Topology):
            raise ValueError(f"topology must be one of {', '.join(Topology)}")
        if self.drain_timeout < 0:
            raise ValueError("drain_timeout must not be negative")


class Read(ABC):
    """One read in flight."""

    @abstractmethod
    def done(self) -> bool:
        """Whether it has ended well; RuntimeError if it failed."""

    def release(self) -> None:  # noqa: B027 - not every library holds anything
        """Free what the library holds of it; it has ended, or is given up."""


class PullEngine(OwnedEngine):
    """Registered memory and connections of one process."""

    selective: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self._registering = threading.Lock()
        self._registered: weakref.WeakKeyDictionary[WholeBuffer, object] = (
            weakref.WeakKeyDictionary()
        )
        self.forsaken: list[Pin] = []  # buffers that a read may still write into

    def source(self, buffer: Buffer) -> dict[str, Any]:
        """Register the whole buffer, once; returns, as JSON, how others can read this part."""
        root = buffer.root
        with self._registering:
            if root not in self._registered and root.nbytes:
                self._registered[root] = handle = self._register(root.address, root.nbytes)
                weakref.finalize(root, self._forget, handle, root.address).atexit = False
        return {"address": buffer.address, **self._describe()}

    def _forget(self, handle: object, address: int) -> None:
        with contextlib.suppress(RuntimeError):  # the memory goes, whatever the library says
            self._unregister(handle, address)

    # --- for engines; all raise RuntimeError, or what their sessions' `_faults` lists ---

    @abstractmethod
    def _register(self, address: int, nbytes: int) -> object:
        """Let peers read this memory."""

    @abstractmethod
    def _unregister(self, handle: object, address: int) -> None:
        """The memory is about to go."""

    @abstractmethod
    def _describe(self) -> dict[str, Any]:
        """What a peer needs besides an address, as JSON; asked after each registration."""

    @abstractmethod
    def reach(self, source: dict[str, Any]) -> object:
        """Get ready to read from what a peer described; cheap when it is known already."""

    @abstractmethod
    def read(self, peer: object, *, remote: int, local: int, nbytes: int) -> Read:
        """Begin to read `nbytes` from the peer's address `remote` to `local`."""


class PullSession(OwnedSession):
    """One member's neighbours."""

    _stays: ClassVar[bool] = True

    def __init__(
        self, *, group: str, session: SessionId, seats: Sequence[Seat], rank: int,
        engine: PullEngine,
    ) -> None:  # fmt: skip
        super().__init__(group=group, session=session, seats=seats, rank=rank, engine=engine)
        self.pulls = engine
        settings = self.settings
        if not isinstance(settings, PullSettings):
            raise TypeError(f"{type(settings).__name__} are not settings of a peer engine")
        self._wanted, self._drain_timeout = Topology(settings.topology), settings.drain_timeout
        self._publications = 0
        self.flying: set[_Work] = set()
        self.source: MemberId | None = None  # who is read from
        self._mover: BucketMover | None = None

    def _connect(self, rendezvous: Rendezvous, deadline: float) -> None:
        """The room is all that is needed; neighbours are known when there is something to read."""

    def _send(self, buffer: Buffer, manifest: Manifest, deadline: float) -> None:
        number = self._next(deadline)
        with buffer.pin():
            self._tell_source(number, buffer, manifest)
            self._await_readers(number, self._readers(), manifest, deadline)
        for bucket in range(len(manifest.checksums)):
            self._landed(bucket)

    def _take(self, buffer: Buffer, manifest: Manifest, deadline: float) -> None:
        self._pull(buffer, manifest, None, deadline)

    def _take_buckets(
        self, buffer: Buffer, manifest: Manifest, only: tuple[int, ...], deadline: float
    ) -> None:
        self._pull(buffer, manifest, only, deadline)

    def _pull(
        self, buffer: Buffer, manifest: Manifest, only: tuple[int, ...] | None, deadline: float
    ) -> None:
        """Read all buckets, or some, which `buffer` then holds one after the other."""
        number = self._next(deadline)
        told = self._await_source(number, manifest, deadline)
        kept = manifest if only is None else manifest.only(only)
        source, readers = self._neighbours(len(kept.checksums))
        with buffer.pin():
            self.pulls.source(buffer)
            if readers:
                self._tell_source(number, buffer, manifest)
            if source:
                told = json.loads(self._wait([f"{number}/source/{source}"], deadline)[0])
            self.source = self.seats[source].member
            reader = Reader(
                self, number=number, source=source, told=told, buffer=buffer, manifest=manifest,
                only=only,
            )  # fmt: skip
            self._mover = BucketMover(
                start=reader.start, stop=self._check, settings=self.settings,
                landed=reader.landed,
            )  # fmt: skip
            self._mover.fill(buffer, kept, deadline, numbers=only)
            self.source = None
            self._await_readers(number, readers, manifest, deadline)

    def _neighbours(self, buckets: int) -> tuple[int, tuple[int, ...]]:
        """The rank to read from, and those that read here."""
        shards = [str(descriptor_of(seat).get("shard", "")) for seat in self.seats]
        ranks = line(shards, self.rank)
        place = ranks.index(self.rank)
        topology = choose(self._wanted, receivers=len(ranks) - 1, buckets=buckets)
        below = downstream(place, len(ranks), topology)
        return ranks[upstream(place, topology)], tuple(ranks[other] for other in below)

    def _readers(self) -> Sequence[int]:
        """The ranks that the sender waits for."""
        return range(1, len(self.seats))

    def _await_source(self, number: int, manifest: Manifest, deadline: float) -> dict[str, Any]:
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
        deadline = time.monotonic() + self._drain_timeout
        for work in tuple(self.flying):
            if not work.drain(deadline):
                self.pulls.forsaken.append(work.forsake())
        if self._mover is not None:
            self._mover.drain()  # all has ended: it lets go of its own pins

    def _explain(self, error: Exception) -> SyncError:
        return Failed(f"{self.name}: {error}", peer=self.source)

    def wait_for(self, key: str, seconds: float, rank: int) -> None:
        """Wait until `rank` has told `key`."""
        self._wait([key], time.monotonic() + seconds, who=[rank])

    def holds(self, number: int, bucket: int, following: int, manifest: Manifest) -> None:
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

    def _tell_source(self, number: int, buffer: Buffer, manifest: Manifest) -> None:
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
        if self._room is None:
            raise Failed(f"{self.name} has no room")
        values = self._room.wait(keys, deadline=deadline)
        for index, value in enumerate(values):
            if value is None:
                peer = self.seats[who[index]].member if who else None
                raise TimedOutError(f"{self.name}: nobody told {keys[index]}", peer=peer)
        return [value for value in values if value is not None]

    def _await_readers(
        self, number: int, ranks: Sequence[int], manifest: Manifest, deadline: float
    ) -> None:
        """Wait until `ranks` hold everything; each stretch has `operation_timeout`."""
        if not ranks:
            return
        last = len(manifest.checksums) - 1
        for stretch in range(self.stretch(last, manifest) + 1 if last >= 0 else 0):
            soon = min(deadline, time.monotonic() + self.settings.operation_timeout)
            self._wait([f"{number}/have/{rank}/{stretch}" for rank in ranks], soon, who=ranks)

    def stretch(self, bucket: int, manifest: Manifest) -> int:
        """Small buckets are told of together, as many as an operation holds."""
        return bucket // max(1, self.settings.operation_bytes // manifest.bucket_bytes)


class Reader:
    """Reads one publication from upstream, in order; `only` some of its buckets, if given."""

    def __init__(
        self, session: PullSession, *, number: int, source: int, told: dict[str, Any],
        buffer: Buffer, manifest: Manifest, only: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        self._session, self._number, self._source = session, number, source
        self._remote, self._local = int(told["address"]), buffer
        self._manifest, self._position = manifest, 0
        self._peer = session.pulls.reach(told)
        self._only = range(len(manifest.checksums)) if only is None else only
        session.holds(number, 0, self._following(-1), manifest)

    def start(self, chunk: memoryview, seconds: float) -> "_Work":
        """Read the next chunk, once upstream holds its bucket."""
        session, start = self._session, self._position
        self._position += len(chunk)
        index, inside = divmod(start, self._manifest.bucket_bytes)
        bucket = self._only[index]
        remote = bucket * self._manifest.bucket_bytes + inside
        if self._source:
            remote = start  # it holds what is held here
            stretch = session.stretch(bucket, self._manifest)
            session.wait_for(f"{self._number}/have/{self._source}/{stretch}", seconds, self._source)
        read = session.pulls.read(
            self._peer, remote=self._remote + remote, local=self._local.address + start,
            nbytes=len(chunk),
        )  # fmt: skip
        session.pulls.count_read(len(chunk))
        return _Work(session, read, time.monotonic() + seconds, self._local.pin())

    def landed(self, bucket: int) -> None:
        """The `bucket`-th of those that are taken is here and was compared: others may read it."""
        number = self._only[bucket]
        self._session._landed(number)  # noqa: SLF001 - a part of its session
        self._session.holds(self._number, number, self._following(bucket), self._manifest)

    def _following(self, index: int) -> int:
        """The bucket that is taken after the `index`-th; beyond the last when it is that."""
        after = index + 1
        return self._only[after] if after < len(self._only) else len(self._manifest.checksums)


class _Work:
    """A read as BucketMover sees it; kept by its session until it has ended."""

    def __init__(self, session: PullSession, read: Read, deadline: float, pin: Pin) -> None:
        self._session, self._read, self._deadline, self._pin = session, read, deadline, pin
        self._over = False
        session.flying.add(self)

    def wait(self) -> None:
        """Look until it has ended; raises what the session or the transport says."""
        rest = _FIRST_REST
        while not self.ended():
            self._session._rest(rest)  # noqa: SLF001 - a part of its session
            if time.monotonic() >= self._deadline:
                raise TimedOutError("no time is left for a read", peer=self._session.source)
            rest = min(rest * 2, _LONGEST_REST)

    def ended(self) -> bool:
        """Whether nothing is written any more; raises if the read failed, the first time."""
        if self._over:  # libraries do not survive a question about what they have freed
            return True
        done = True  # a failure is an end too
        try:
            done = self._read.done()
        finally:
            if done:
                self._over = True
                self._session.flying.discard(self)
                self._read.release()
                self._pin.release()
        return done

    def drain(self, deadline: float) -> bool:
        """Wait for the end until `deadline` (monotonic); whether it came."""
        while time.monotonic() < deadline:
            with contextlib.suppress(*self._session._faults):  # noqa: SLF001 - told already
                if not self.ended():
                    time.sleep(_LONGEST_REST)
                    continue
            return True
        self._read.release()
        return False

    def forsake(self) -> Pin:
        """The pin, for ever."""
        self._over = True
        return self._pin
