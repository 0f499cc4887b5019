"""Layout of a version of the weights: tensors in one flat buffer, cut into buckets."""

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import accumulate, pairwise

DIGEST_CHARACTERS = 32  # 128 bits
_DIGEST = re.compile(rf"[0-9a-f]{{{DIGEST_CHARACTERS}}}")


class BucketCheck(StrEnum):
    """What the text of each bucket in a manifest is: a BLAKE3 digest, or a checksum with its seed,
    XXH3 of the bytes or sums of their words (see `sync.bucket_checks`).
    """

    BLAKE3 = "blake3"
    XXH3 = "xxh3"
    SUMS = "sums"


RowRange = tuple[int, int]
"""Rows of a tensor's first dimension: the first one, and the one behind the last."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor's place in the flat buffer. `dtype` is torch's name, e.g. "bfloat16"."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class WeightManifest:
    """Layout and digests of one version. `digests` has a digest for each bucket, or a checksum,
    as `check` says: DIGEST_CHARACTERS hexadecimal digits.

    `total_bytes` is the flat buffer's length, padding included. The buffer consists of `parts`
    (lengths in bytes), one for each sender, in order; none given means one part. Each part is cut
    into buckets of `bucket_bytes`, the last of which may be shorter. Several specs of one name are
    that tensor's pieces along its first dimension, in order.
    """

    tensors: tuple[TensorSpec, ...]
    total_bytes: int
    bucket_bytes: int
    digests: tuple[str, ...]
    parts: tuple[int, ...] = ()
    check: BucketCheck = BucketCheck.BLAKE3

    def __post_init__(self) -> None:
        if self.bucket_bytes <= 0:
            raise ValueError("bucket_bytes must be positive")
        if self.total_bytes < 0:
            raise ValueError("total_bytes must not be negative")
        if self.parts and (min(self.parts) < 0 or sum(self.parts) != self.total_bytes):
            raise ValueError(f"{len(self.parts)} parts do not make {self.total_bytes} bytes")
        # By arithmetic: a short message may claim more buckets than fit into memory.
        buckets = sum(-(-part // self.bucket_bytes) for part in self.parts or (self.total_bytes,))
        if len(self.digests) != buckets:
            raise ValueError(f"{len(self.digests)} digests for {buckets} buckets")
        if not all(_DIGEST.fullmatch(digest) for digest in self.digests):
            raise ValueError(f"a digest is not {DIGEST_CHARACTERS} hexadecimal digits")
        for tensor in self.tensors:
            end = tensor.offset + tensor.nbytes
            if tensor.offset < 0 or tensor.nbytes < 0 or end > self.total_bytes:
                raise ValueError(f"tensor {tensor.name} lies outside the buffer")

    def bounds(self) -> list[tuple[int, int]]:
        """First byte and end of each part."""
        return list(pairwise(accumulate(self.parts or (self.total_bytes,), initial=0)))

    def buckets(self) -> list[tuple[int, int]]:
        """First byte and end of each bucket."""
        size = self.bucket_bytes
        return [
            (start, min(start + size, end))
            for begin, end in self.bounds()
            for start in range(begin, end, size)
        ]

    def part(self, index: int) -> "WeightManifest":
        """What sender `index` sends, as a manifest of its own, without tensors."""
        begin, end = self.bounds()[index]
        inside = [
            digest
            for (start, _), digest in zip(self.buckets(), self.digests, strict=True)
            if begin <= start < end
        ]
        return replace(self, tensors=(), total_bytes=end - begin, digests=tuple(inside), parts=())

    def only(self, buckets: Sequence[int]) -> "WeightManifest":
        """These buckets (numbers, ascending) one after the other, without tensors.

        As many parts as there are here; each keeps the length of its buckets.
        """
        whole = self.buckets()
        firsts = [first for first, _ in self._numbers()]
        lengths = tuple(
            sum(end - start for start, end in (whole[first + number] for number in numbers))
            for first, numbers in zip(firsts, self.by_part(buckets), strict=True)
        )
        return replace(
            self,
            tensors=(),
            total_bytes=sum(lengths),
            digests=tuple(self.digests[number] for number in buckets),
            parts=lengths if self.parts else (),
        )

    def by_part(self, buckets: Sequence[int]) -> list[tuple[int, ...]]:
        """These buckets (ascending) as each part numbers its own."""
        return [
            tuple(
                n - first for n in buckets[bisect_left(buckets, first) : bisect_left(buckets, end)]
            )
            for first, end in self._numbers()
        ]

    def _numbers(self) -> list[tuple[int, int]]:
        """The first bucket of each part, and the first one after it."""
        counts = (-(-(end - start) // self.bucket_bytes) for start, end in self.bounds())
        return list(pairwise(accumulate(counts, initial=0)))


def combine_manifests(parts: Sequence[WeightManifest]) -> WeightManifest:
    """The manifest of what several senders hold, in their order. ValueError when buckets, or what
    their digests are, differ.
    """
    sizes = {part.bucket_bytes for part in parts}
    if len(sizes) != 1:
        raise ValueError(f"parts are cut into buckets of {sorted(sizes)} bytes")
    checks = {part.check for part in parts}
    if len(checks) != 1:
        raise ValueError(f"parts are checked by {' and '.join(sorted(checks))}")
    lengths = tuple(part.total_bytes for part in parts)
    starts = accumulate(lengths, initial=0)
    return WeightManifest(
        tensors=tuple(
            replace(spec, offset=start + spec.offset)
            for part, start in zip(parts, starts, strict=False)
            for spec in part.tensors
        ),
        total_bytes=sum(lengths),
        bucket_bytes=sizes.pop(),
        digests=tuple(digest for part in parts for digest in part.digests),
        parts=lengths,
        check=checks.pop(),
    )
