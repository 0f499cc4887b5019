"""Sending only the bytes that have changed since a version that every receiver serves.

A layer over any engine: what travels is a flat buffer like any other, from which a receiver and its
base make the new weights. Reinforcement learning changes few bytes of 16-bit weights in a step.

Encoded are, for each bucket, the gaps between changed bytes (two bytes each, split into two
streams, entropy coded) and the bytes themselves: 2 % of random changes make less than 4 %. After
_LONGEST_GAP equal bytes one more is told although it is equal, so that two bytes always suffice.
"""

import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, cast

import numpy as np
from zlib_ng import zlib_ng

from rollcall_protocol.manifest import Manifest
from rollcall_runtime.sync.buffers import HostBuffer
from rollcall_runtime.sync.errors import ChecksumMismatchError

Bytes = Any  # numpy.ndarray of uint8

_MAGIC = b"rolldel1"
_HEADER = struct.Struct("<8sQ")  # magic, number of buckets
_BUCKET = struct.Struct("<QQQ")  # bytes of the gaps' low and high halves, changes
_LONGEST_GAP = 1 << 16
_BLOCK = 1 << 20  # bytes compared at a time: they stay in the cache
_THREADS = 2
_UNREADABLE: tuple[type[Exception], ...] = (
    ValueError, IndexError, struct.error, cast("type[Exception]", zlib_ng.error),
)  # fmt: skip


def encode(
    base: memoryview, new: memoryview, manifest: Manifest, *, most: float = 0.5
) -> tuple[HostBuffer, Manifest] | None:
    """What makes `new` (which `manifest` describes) of `base`, and the manifest of that.

    None when it would be longer than `most` of the whole, when more than `most` of a bucket has
    changed, or when the buffers differ in size.
    """
    if len(base) != len(new) or not len(new):
        return None
    before, after = np.frombuffer(base, np.uint8), np.frombuffer(new, np.uint8)
    parts = _each(manifest, lambda _, i, j: _encode(before[i:j], after[i:j], most))
    if None in parts:
        return None
    total = _HEADER.size + sum(8 + len(part) for part in parts)
    if total > most * len(new):
        return None
    buffer, position = HostBuffer(total), _HEADER.size
    _HEADER.pack_into(buffer.memory, 0, _MAGIC, len(parts))
    for part in parts:
        struct.pack_into("<Q", buffer.memory, position, len(part))
        position += 8
        buffer.memory[position : position + len(part)] = part
        position += len(part)
    starts = range(0, total, manifest.bucket_bytes)
    sums = tuple(
        zlib_ng.crc32(buffer.memory[start : start + manifest.bucket_bytes]) for start in starts
    )
    return buffer, replace(manifest, tensors=(), total_bytes=total, checksums=sums, parts=())


def decode(base: memoryview, encoded: memoryview, manifest: Manifest, target: memoryview) -> None:
    """Make the weights that `manifest` describes in `target`, from `base` and what was encoded.

    Raises ChecksumMismatchError when they are not what the manifest says; `target` is undefined
    then.
    """
    if len(base) != manifest.total_bytes:
        raise ChecksumMismatchError(
            f"the base has {len(base)} bytes, the weights {manifest.total_bytes}"
        )
    parts = _split(encoded, len(manifest.checksums))
    before, after = np.frombuffer(base, np.uint8), np.frombuffer(target, np.uint8)
    bad: list[int] = []

    def work(bucket: int, start: int, end: int) -> None:
        _decode(before[start:end], parts[bucket], after[start:end])
        if zlib_ng.crc32(target[start:end]) != manifest.checksums[bucket]:
            bad.append(bucket)

    try:
        _each(manifest, work)
    except _UNREADABLE as error:
        raise ChecksumMismatchError(f"the delta cannot be read: {error}") from error
    if bad:
        raise ChecksumMismatchError(f"wrong checksum in buckets {sorted(bad)} of {len(parts)}")


def _each(manifest: Manifest, work: Callable[[int, int, int], Any]) -> list[Any]:
    """Run `work(bucket, start, end)` for all buckets; numpy and zlib let threads run."""
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="delta") as threads:
        calls = [
            threads.submit(work, bucket, start, end)
            for bucket, (start, end) in enumerate(manifest.buckets())
        ]
        return [call.result() for call in calls]


def _encode(before: Bytes, after: Bytes, most: float) -> bytes | None:
    found, count = [], 0
    for start in range(0, len(after), _BLOCK):
        end = start + _BLOCK
        found.append(start + np.flatnonzero(before[start:end] != after[start:end]))
        count += len(found[-1])
        if count > most * len(after):  # a position takes eight bytes until it is packed
            return None
    changed = np.concatenate(found)
    gaps = np.diff(changed, prepend=-1) - 1
    positions = changed
    if len(gaps) and gaps.max() >= _LONGEST_GAP:
        milestones = np.arange(_LONGEST_GAP - 1, len(after), _LONGEST_GAP)
        positions = np.union1d(changed, milestones)
        gaps = np.diff(positions, prepend=-1) - 1
    low = _pack((gaps & 0xFF).astype(np.uint8))
    high = _pack((gaps >> 8).astype(np.uint8))
    head = _BUCKET.pack(len(low), len(high), len(positions))
    return b"".join((head, low, high, after[positions].tobytes()))


def _decode(before: Bytes, part: memoryview, after: Bytes) -> None:
    low_bytes, high_bytes, changes = _BUCKET.unpack_from(part)
    low_end = _BUCKET.size + low_bytes
    high_end = low_end + high_bytes
    low = np.frombuffer(zlib_ng.decompress(part[_BUCKET.size : low_end]), np.uint8)
    high = np.frombuffer(zlib_ng.decompress(part[low_end:high_end]), np.uint8)
    values = np.frombuffer(part[high_end:], np.uint8)
    if not len(low) == len(high) == len(values) == changes:
        raise ValueError(f"{changes} changes have {len(low)} gaps and {len(values)} values")
    after[:] = before
    if changes:
        positions = np.cumsum(low.astype(np.int64) + (high.astype(np.int64) << 8) + 1) - 1
        after[positions] = values


def _pack(stream: Bytes) -> bytes:
    """Entropy coding and runs: high halves are mostly zeros; nothing else is there twice."""
    coder = zlib_ng.compressobj(1, zlib_ng.DEFLATED, strategy=zlib_ng.Z_RLE)
    packed: bytes = coder.compress(stream.data) + coder.flush()
    return packed


def _split(encoded: memoryview, buckets: int) -> list[memoryview]:
    if len(encoded) < _HEADER.size or _HEADER.unpack_from(encoded) != (_MAGIC, buckets):
        raise ChecksumMismatchError(f"not a delta of {buckets} buckets")
    parts, position = [], _HEADER.size
    for _ in range(buckets):
        if position + 8 > len(encoded):
            raise ChecksumMismatchError("the delta is cut off")
        (length,) = struct.unpack_from("<Q", encoded, position)
        position += 8
        parts.append(encoded[position : position + length])
        position += length
    return parts
