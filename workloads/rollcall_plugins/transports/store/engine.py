"""Shared storage as the transport: for rollouts that no direct path reaches.

The sender writes a version to a directory or an object store (whatever fsspec opens), and receivers
read it from there: in another cluster, or behind NAT. It costs a write and a read of storage, and
the sender waits for no receiver. Members meet in the store too, so that a session is as complete as
with any engine.

    URL/GROUP/sessions/SESSION/RANK                    who has taken its seat
    URL/GROUP/versions/SESSION-N/manifest.json      written first: layout, digests, time
    URL/GROUP/versions/SESSION-N/chunk-I            bytes [I * chunk_bytes, (I + 1) * chunk_bytes)
    URL/GROUP/versions/SESSION-N/COMPLETE           written last: CRC-32 of manifest.json

Names are percent-encoded, so none leads out of URL. Without its marker a version does not exist;
what a sender that died left behind is removed by the next one.
"""

import contextlib
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import quote

import fsspec.core
from zlib_ng.zlib_ng import crc32

from rollcall_protocol.wire.ids import SessionId
from rollcall_protocol.wire.json_codec import CodecError, decode, encode
from rollcall_protocol.wire.messages import Seat
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.bucket_transfer import wrong_digests
from rollcall_runtime.sync.digests import digest_of
from rollcall_runtime.sync.engine import EngineKind, Role, SyncSettings
from rollcall_runtime.sync.engines.common.threaded_engine import (
    ThreadedEngine,
    ThreadedSession,
    seconds_left,
)
from rollcall_runtime.sync.errors import (
    DigestMismatchError,
    JoinFailedError,
    TimedOutError,
    TransferFailedError,
)
from rollcall_runtime.sync.memory.buffers import Buffer
from rollcall_runtime.sync.rendezvous import SessionRendezvous

_MARKER, _MANIFEST = "COMPLETE", "manifest.json"


@dataclass(frozen=True, slots=True)
class StoreSettings(SyncSettings):
    """`url` is where versions go, e.g. file:///mnt/weights or s3://bucket/prefix.

    `storage_options` is a JSON object for fsspec's file system. Receivers look every
    `poll_seconds`. The newest `keep` versions stay, and every one that is younger than
    `keep_seconds`. Chunks have `operation_bytes`; `threads` of them are read or written at a time.
    """

    url: str = ""
    storage_options: str = "{}"
    poll_seconds: float = 0.02
    keep: int = 2
    keep_seconds: float = 60.0

    def __post_init__(self) -> None:
        SyncSettings.__post_init__(self)
        if "://" not in self.url:
            raise ValueError("url must say where versions go, e.g. file:///mnt/weights")
        if self.keep < 1 or self.keep_seconds < 0 or self.poll_seconds <= 0:
            raise ValueError("keep must be at least 1, keepSeconds 0, pollSeconds above 0")
        try:
            if not isinstance(json.loads(self.storage_options), dict):
                raise ValueError("storageOptions must be a JSON object")  # noqa: TRY004
        except json.JSONDecodeError as error:
            raise ValueError(f"storageOptions is not JSON: {error}") from error


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of the `chunk`-th file, from `offset` in it."""

    chunk: int
    offset: int
    nbytes: int


def cut_in_chunks(ranges: Sequence[tuple[int, int]], size: int) -> Iterator[Piece]:
    """The bytes of these ranges (first, end; ascending), in pieces of files of `size` bytes.

    Ranges that touch are read together.
    """
    joined: list[tuple[int, int]] = []
    for start, end in ranges:
        touches = joined and joined[-1][1] == start
        joined.append((joined.pop()[0] if touches else start, end))
    for first, end in joined:
        start = first
        while start < end:
            chunk, offset = divmod(start, size)
            nbytes = min(size - offset, end - start)
            yield Piece(chunk, offset, nbytes)
            start += nbytes


class StoreEngine(ThreadedEngine):
    """Members write and read versions under one URL of fsspec; the module says how."""

    needs_digests = True

    selective = True

    name = "store"
    kind = EngineKind.PEER
    devices = frozenset({"cpu"})  # versions are in host memory
    library = "fsspec"
    settings_type = StoreSettings

    def _open_transport(self, role: Role) -> dict[str, Any]:
        options = json.loads(self._store_settings.storage_options)
        try:
            self.files, self.root = fsspec.core.url_to_fs(self._store_settings.url, **options)
            self.files.makedirs(self.root, exist_ok=True)
        except (ImportError, OSError, ValueError) as error:
            raise RuntimeError(f"cannot use {self._store_settings.url}: {error}") from error
        return super()._open_transport(role)

    def _new_session(
        self, *, group: str, session: SessionId, seats: Sequence[Seat], rank: int
    ) -> "StoreSession":
        return StoreSession(
            group=group,
            session=session,
            seats=seats,
            rank=rank,
            engine=self,
            settings=self._store_settings,
        )

    @property
    def _store_settings(self) -> StoreSettings:
        return self.settings_as(StoreSettings)


class StoreSession(ThreadedSession):
    """One member's view of a group's folder."""

    _library_errors: ClassVar[tuple[type[Exception], ...]] = (RuntimeError, OSError, ValueError)
    _uses_rendezvous: ClassVar[bool] = False

    def __init__(
        self,
        *,
        group: str,
        session: SessionId,
        seats: Sequence[Seat],
        rank: int,
        engine: StoreEngine,
        settings: StoreSettings,
    ) -> None:
        super().__init__(group=group, session=session, seats=seats, rank=rank, engine=engine)
        self._files, self._own = engine.files, settings
        base = f"{engine.root}/{quote(group, safe='')}"
        # Sorted by name they are sorted by age.
        self._mark = f"{session.epoch:010d}.{session.boot:06d}.{session.attempt:06d}"
        self._sessions, self._versions = f"{base}/sessions", f"{base}/versions"
        self._publications, self._joined = 0, False

    def _join_without_rendezvous(self, deadline: float) -> None:
        """Take a seat and wait until all are taken."""
        room = f"{self._sessions}/{self._mark}"
        self._files.makedirs(room, exist_ok=True)
        self._files.pipe_file(f"{room}/{self.rank}", b"")
        missing = list(range(len(self.seats)))
        while missing := [rank for rank in missing if not self._files.exists(f"{room}/{rank}")]:
            if time.monotonic() >= deadline:
                reason = f"{self.name}: {len(missing)} of {len(self.seats)} seats stayed empty"
                raise JoinFailedError(reason, peer=self.seats[missing[0]].member)
            self._sleep(self._own.poll_seconds)
            self._files.invalidate_cache()
        self._joined = True

    def _connect(self, rendezvous: SessionRendezvous, deadline: float) -> None:
        """Never asked: members meet in the store."""

    def _send(self, buffer: Buffer, manifest: WeightManifest, deadline: float) -> None:
        folder = self._next()
        size = self.settings.operation_bytes
        header = {
            "manifest": encode(manifest),
            "chunk_bytes": size,
            "time": time.time(),
        }
        text = json.dumps(header, separators=(",", ":")).encode()
        self._files.makedirs(folder, exist_ok=True)
        self._files.pipe_file(f"{folder}/{_MANIFEST}", text)

        def write(index: int, offset: int, chunk: memoryview) -> None:  # noqa: ARG001
            with self._files.open(f"{folder}/chunk-{index}", "wb") as file:
                file.write(chunk)

        with buffer.hold():
            for _ in self._each(cut_in_chunks([(0, buffer.nbytes)], size), buffer, write, deadline):
                pass
        self._finish(folder, str(crc32(text)).encode())
        for bucket in range(len(manifest.digests)):
            self._trace_bucket(bucket)
        self._prune(folder)

    def _receive(self, buffer: Buffer, manifest: WeightManifest, deadline: float) -> None:
        self._read(buffer, manifest, range(len(manifest.digests)), deadline)

    def _receive_buckets(
        self, buffer: Buffer, manifest: WeightManifest, only: tuple[int, ...], deadline: float
    ) -> None:
        self._read(buffer, manifest, only, deadline)

    def _read(
        self, buffer: Buffer, manifest: WeightManifest, numbers: Sequence[int], deadline: float
    ) -> None:
        """Read these buckets, which `buffer` holds one after the other."""
        folder = self._next()
        announced_manifest, size = self._wait_for_version(folder, deadline)
        announced = (announced_manifest.total_bytes, announced_manifest.bucket_bytes)
        if announced != (manifest.total_bytes, manifest.bucket_bytes):
            raise DigestMismatchError(
                f"the sender announces {announced}, the manifest says "
                f"{(manifest.total_bytes, manifest.bucket_bytes)}"
            )

        def read(index: int, offset: int, chunk: memoryview) -> None:
            self.engine.count_read(len(chunk))
            # Without a cache: of a remote file only what is asked for is fetched.
            with self._files.open(f"{folder}/chunk-{index}", "rb", cache_type="none") as file:
                file.seek(offset)
                while chunk:
                    count = file.readinto(chunk)
                    if not count:
                        raise OSError(f"chunk {index} is too short")
                    chunk = chunk[count:]

        bad: list[int] = []
        kept = manifest.only(numbers)
        unchecked = list(enumerate(kept.buckets()))
        buckets = manifest.buckets()
        pieces = cut_in_chunks([buckets[number] for number in numbers], size)
        with buffer.hold():
            for end in self._each(pieces, buffer, read, deadline):
                while unchecked and unchecked[0][1][1] <= end:
                    bucket, (start, stop) = unchecked.pop(0)
                    if digest_of(buffer.memory[start:stop]) != kept.digests[bucket]:
                        bad.append(bucket)
                    self._trace_bucket(numbers[bucket])
        if bad:
            raise wrong_digests(bad, kept, numbers)

    def _disconnect(self) -> None:
        with contextlib.suppress(OSError):  # another receiver may have removed it before
            self._files.rm_file(f"{self._sessions}/{self._mark}/{self.rank}")
            self._files.rmdir(f"{self._sessions}/{self._mark}")  # fails unless it was the last one

    def _next(self) -> str:
        if not self._joined:
            raise TransferFailedError(f"{self.name} was not joined")
        self._publications += 1
        return f"{self._versions}/{self._mark}-{self._publications:08d}"

    def _each(
        self, pieces: Iterable[Piece], buffer: Buffer, work: Any, deadline: float
    ) -> Iterator[int]:
        """Run `work(chunk's number, offset in it, memory)` for all pieces, some at a time; yields
        the end of each in the buffer, where they lie one after the other.
        """
        with ThreadPoolExecutor(self.settings.threads, thread_name_prefix="store") as threads:
            in_flight: list[tuple[int, Future[None]]] = []
            start = 0
            for piece in pieces:
                if len(in_flight) >= self.settings.threads:
                    yield self._land(in_flight, deadline)
                end = start + piece.nbytes
                memory = buffer.memory[start:end]
                in_flight.append((end, threads.submit(work, piece.chunk, piece.offset, memory)))
                start = end
            while in_flight:
                yield self._land(in_flight, deadline)

    def _land(self, in_flight: list[tuple[int, Future[None]]], deadline: float) -> int:
        self._raise_if_aborted()
        end, call = in_flight[0]
        try:
            call.result(seconds_left(deadline, doing="reading or writing the store"))
        except TimeoutError as error:
            raise TimedOutError(f"{self.name}: the store is too slow at byte {end}") from error
        finally:
            del in_flight[0]
        return end

    def _finish(self, folder: str, mark: bytes) -> None:
        """The marker appears whole or not at all: readers compare what it says."""
        self._raise_if_aborted()
        self._files.pipe_file(f"{folder}/{_MARKER}", mark)

    def _wait_for_version(self, folder: str, deadline: float) -> tuple[WeightManifest, int]:
        while True:
            self._raise_if_aborted()
            version = self._read_version(folder)
            if version is not None:
                return version
            seconds_left(deadline, doing=f"waiting for {folder}")
            self._sleep(self._own.poll_seconds)

    def _read_version(self, folder: str) -> tuple[WeightManifest, int] | None:
        """The manifest and the size of chunks."""
        try:
            self._files.invalidate_cache()
            mark = self._files.cat_file(f"{folder}/{_MARKER}")
            text = self._files.cat_file(f"{folder}/{_MANIFEST}")
        except FileNotFoundError:
            return None
        if str(crc32(text)).encode() != mark:
            return None  # one of them is not written out yet
        try:
            header = json.loads(text)
            return decode(WeightManifest, header["manifest"]), int(header["chunk_bytes"])
        except (CodecError, KeyError) as error:
            raise TransferFailedError(f"{folder} has no manifest of this release") from error

    def _prune(self, newest: str) -> None:
        """Remove versions beyond the newest few, and unfinished ones, that are old enough."""
        folders = sorted(str(path) for path in self._files.ls(self._versions, detail=False))
        names = [folder.rstrip("/").rpartition("/")[2] for folder in folders]
        complete = [
            name for name in names if self._files.exists(f"{self._versions}/{name}/{_MARKER}")
        ]
        kept = {*complete[-self._own.keep :], newest.rpartition("/")[2]}
        for name in names:
            folder = f"{self._versions}/{name}"
            if name not in kept and self._age(folder) > self._own.keep_seconds:
                self._files.rm(folder, recursive=True)

    def _age(self, folder: str) -> float:
        try:
            written = json.loads(self._files.cat_file(f"{folder}/{_MANIFEST}"))["time"]
        except (FileNotFoundError, ValueError, KeyError):
            return float("inf")  # its sender died before anything else was written
        return time.time() - float(written)
