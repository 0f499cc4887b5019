"""Which buckets a receiver takes that needs only a part of the weights.

A rank of a tensor-parallel engine serves some rows of most tensors. Rows of the first dimension lie
together in the flat buffer, so the buckets without any of them can be left out; a cut along another
dimension goes through every row, and such a tensor is taken whole. Buckets
are taken whole, because each has one digest, and kept one after the other: the fewer rows a
bucket spans, the fewer bytes are received in vain.
"""

import re
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from rollcall_protocol.wire.ids import Version
from rollcall_protocol.wire.weight_manifest import RowRange, TensorSpec, WeightManifest
from rollcall_runtime.sync.engine import SyncSession
from rollcall_runtime.sync.errors import StagingError
from rollcall_runtime.sync.weights.snapshots import WeightSnapshot
from rollcall_runtime.sync.weights.staging import StagingArea

_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_MAX_RANGES = 200  # bucket ranges in one request line, which servers limit to 8 KiB


class Shard(ABC):
    """What one rollout needs of each tensor. Rollouts whose shards have one `key` need the same."""

    @property
    @abstractmethod
    def key(self) -> str:
        """Not empty, e.g. "0/2" for the first of two ranks."""

    @abstractmethod
    def rows(self, name: str, shape: tuple[int, ...]) -> RowRange | None:
        """Rows of the first dimension of a whole tensor; None for all, an empty range for none.

        Always the same for the same tensor.
        """


@dataclass(frozen=True, slots=True)
class RowShard(Shard):
    """The `rank`-th of `size` nearly equal ranges of every tensor's rows; scalars whole."""

    rank: int
    size: int

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank {self.rank} is not one of {self.size}")

    @property
    def key(self) -> str:
        return f"{self.rank}/{self.size}"

    def rows(self, name: str, shape: tuple[int, ...]) -> RowRange | None:  # noqa: ARG002
        if not shape:
            return None
        return shape[0] * self.rank // self.size, shape[0] * (self.rank + 1) // self.size


@dataclass(frozen=True, slots=True)
class BucketSelection:
    """What a receiver takes: `buckets` of the whole, and the manifest of these, in which the
    tensors are the rows that it needs.
    """

    manifest: WeightManifest
    buckets: tuple[int, ...]


def select(whole: WeightManifest, shard: Shard) -> BucketSelection:
    """The buckets of `whole` that hold any of what `shard` needs. Raises StagingError."""
    wanted = cut(whole, shard)
    bounds = whole.buckets()
    starts = [start for start, _ in bounds]
    numbers: set[int] = set()
    for spec in wanted.tensors:
        if spec.nbytes:
            last = bisect_right(starts, spec.offset + spec.nbytes - 1)
            numbers.update(range(bisect_right(starts, spec.offset) - 1, last))
    buckets = tuple(sorted(numbers))
    kept = whole.only(buckets)
    places = dict(zip(buckets, kept.buckets(), strict=True))

    def moved(spec: TensorSpec) -> TensorSpec:
        if not spec.nbytes:
            return replace(spec, offset=0)
        number = bisect_right(starts, spec.offset) - 1
        return replace(spec, offset=places[number][0] + spec.offset - starts[number])

    return BucketSelection(replace(kept, tensors=tuple(map(moved, wanted.tensors))), buckets)


def receive(
    session: SyncSession,
    version: Version,
    manifest: WeightManifest,
    *,
    shard: Shard | None,
    stage: StagingArea,
    patience: float,
    timeout: float,
) -> None:
    """Stage `version`, or what `shard` needs of it; `patience` is for a buffer, both in seconds."""
    if shard is None:
        with stage.staging(version, manifest, timeout=patience) as buffer:
            session.receive(buffer, manifest, timeout=timeout)
        return
    taken = select(manifest, shard)
    with stage.staging(version, taken.manifest, timeout=patience) as buffer:
        session.receive_buckets(buffer, manifest, only=taken.buckets, timeout=timeout)


def tensors(weights: WeightSnapshot, shard: Shard | None) -> Iterator[tuple[str, torch.Tensor]]:
    """What `shard` needs of weights that are here whole; see `WeightSnapshot.tensors`."""
    if shard is None:
        yield from weights.tensors()
        return
    with weights.buffer.hold() as hold:
        yield from WeightSnapshot(cut(weights.manifest, shard), hold).tensors()


def cut(whole: WeightManifest, shard: Shard) -> WeightManifest:
    """The same buffer, in which the tensors are the rows that `shard` needs.

    Raises StagingError when it wants rows beyond the tensor's.
    """
    pieces: dict[str, list[TensorSpec]] = {}
    for spec in whole.tensors:
        pieces.setdefault(spec.name, []).append(spec)
    kept = {name: _cut(name, specs, shard) for name, specs in pieces.items()}
    return replace(whole, tensors=tuple(spec for specs in kept.values() for spec in specs))


def _cut(name: str, pieces: Sequence[TensorSpec], shard: Shard) -> list[TensorSpec]:
    shape = pieces[0].shape
    count = sum(piece.shape[0] for piece in pieces) if shape else 0
    rows = shard.rows(name, (count, *shape[1:]) if shape else ())
    if rows is None or rows == (0, count):
        return list(pieces)
    first, end = rows
    if not 0 <= first <= end <= count:
        raise StagingError(f"shard {shard.key} wants rows {rows} of {name}, which has {count}")
    kept, above = [], 0
    for piece in pieces:
        here = piece.shape[0]
        start, stop = max(first - above, 0), min(end - above, here)
        if start < stop:
            row = piece.nbytes // here
            kept.append(
                replace(
                    piece,
                    shape=(stop - start, *piece.shape[1:]),
                    offset=piece.offset + start * row,
                    nbytes=(stop - start) * row,
                )
            )
        above += here
    return kept


def batches(buckets: Sequence[int]) -> Iterator[tuple[str, list[int]]]:
    """As many buckets at a time as one request can name, and their names."""
    ranges: list[list[int]] = []
    for number in buckets:
        if ranges and ranges[-1][-1] == number - 1:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    for first in range(0, len(ranges), _MAX_RANGES):
        some = ranges[first : first + _MAX_RANGES]
        names = ",".join(f"{range_[0]}-{range_[-1]}" for range_ in some)
        yield names, [number for range_ in some for number in range_]


def parse_bucket_ranges(text: str | None, manifest: WeightManifest) -> list[tuple[int, int]]:
    """Byte ranges (start, end) of the buckets that `batches` named, of all if None.

    Raises ValueError.
    """
    if text is None:
        return [(0, manifest.total_bytes)]
    bounds, found = manifest.buckets(), []
    for range_ in filter(None, text.split(",")):
        match = _RANGE.fullmatch(range_)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < len(bounds):
            raise ValueError(f"{range_!r} is not a range within {len(bounds)} buckets")
        found.append((bounds[first][0], bounds[last][1]))
    return found
