"""Sending only the bytes that have changed since a version that every receiver serves.

A layer over any engine: what travels is a flat buffer like any other, from which a receiver and its
base make the new weights. Reinforcement learning changes few bytes of 16-bit weights in a step.

An `EncodedDelta` holds for each bucket the gaps between changed bytes (two bytes each, split into
two streams) and by how much the bytes differ, which is little when an optimizer changed them; all
of it entropy coded. 2 % of random changes make less than 4 %. After _LONGEST_GAP equal bytes one
more is listed although it is equal, so that two bytes always suffice.
"""

import asyncio
import logging
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
import zstandard

from rollcall_protocol.job_config import DeltaConfig
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.bucket_transfer import wrong_digests
from rollcall_runtime.sync.digests import DigestBuilder, bucket_digests
from rollcall_runtime.sync.errors import DigestMismatchError, ExhaustedError
from rollcall_runtime.sync.memory.buffers import BufferHold, BufferWindow, GrowingBufferPool
from rollcall_runtime.sync.weights.snapshots import WeightSnapshot

log = logging.getLogger(__name__)

Bytes = Any  # numpy.ndarray of uint8
Positions = Any  # numpy.ndarray of int64
ByteRange = tuple[int, int]  # a bucket's first byte, and its end
R = TypeVar("R")

_MAGIC = b"rolldel3"
_HEADER = struct.Struct("<8sQ")  # magic, number of buckets
_BUCKET = struct.Struct("<QQQ")  # bytes of the gaps' low and high halves, changes
_LENGTH = struct.Struct("<Q")
_LONGEST_GAP = 0xFFFF
_LEVEL = 1  # zstd's: more effort finds nothing more in gaps
_WORD = 8  # bytes; a byte's position shifted right by three is the number of its word
_DECODE_BYTES = 2 << 20  # decoded at a time: they stay in the CPU cache
_BUFFERS = 3  # the delta being sent, the next one, and one that a broken session still reads
_UNREADABLE = (ValueError, IndexError, RuntimeError, struct.error, zstandard.ZstdError)


@dataclass(frozen=True, slots=True)
class EncodedDelta:
    """A delta, and what describes the buffer that holds it. Released by its owner, or dropped."""

    manifest: WeightManifest
    buffer: BufferWindow
    hold: BufferHold


class DeltaEncoder:
    """Makes deltas in buffers that are reused. For one caller at a time."""

    def __init__(self, config: DeltaConfig) -> None:
        self._config = config
        self._pool = GrowingBufferPool(limit=_BUFFERS)

    async def encode(
        self, old: WeightSnapshot | None, new: WeightSnapshot | None
    ) -> EncodedDelta | None:
        """The delta from `old` to `new`; None if either is missing or the delta is not short.

        The caller owns what is returned.
        """
        if old is None or new is None or old.manifest.tensors != new.manifest.tensors:
            return None
        # Shared, because their owner may release them meanwhile.
        return await asyncio.to_thread(self._encode, old.share(), new.share())

    def _encode(self, old: WeightSnapshot, new: WeightSnapshot) -> EncodedDelta | None:
        try:
            return encode(
                old.host.memory,
                new.host.memory,
                new.manifest,
                config=self._config,
                pool=self._pool,
            )
        except ExhaustedError as error:
            log.warning("sending the whole version instead of a delta: %s", error)
            return None
        finally:
            old.release()
            new.release()


def encode(
    base: memoryview,
    new: memoryview,
    manifest: WeightManifest,
    *,
    config: DeltaConfig,
    pool: GrowingBufferPool,
    timeout: float = 0,
) -> EncodedDelta | None:
    """The delta from `base` to `new`, which `manifest` describes.

    None when it would be longer than `max_share` of the whole (if that is not empty), when more
    than that of a bucket has changed, or when the buffers differ in size. Raises ExhaustedError
    when `pool` has no buffer within `timeout` seconds.
    """
    if len(base) != len(new):
        return None
    before, after = np.frombuffer(base, np.uint8), np.frombuffer(new, np.uint8)

    def work(_: int, bucket: ByteRange) -> list[Any] | None:
        cut = slice(*bucket)
        return _encode(before[cut], after[cut], config)

    found = _map_buckets(work, manifest.buckets(), config.threads)
    pieces = [piece for piece in found if piece is not None]
    lengths = [sum(len(stream) for stream in piece) for piece in pieces]
    total = _HEADER.size + sum(_LENGTH.size + length for length in lengths)
    if len(pieces) < len(found) or (found and total > config.max_share * len(new)):
        return None
    hold, buffer = pool.take(total, timeout=timeout)
    _HEADER.pack_into(buffer.memory, 0, _MAGIC, len(pieces))
    position = _HEADER.size
    for piece, length in zip(pieces, lengths, strict=True):
        for stream in (_LENGTH.pack(length), *piece):
            buffer.memory[position : position + len(stream)] = stream
            position += len(stream)
    sums = bucket_digests(buffer.memory, manifest.bucket_bytes)
    short = replace(manifest, tensors=(), total_bytes=total, digests=sums, parts=())
    return EncodedDelta(short, buffer, hold)


def decode(
    encoded: memoryview,
    short: WeightManifest,
    manifest: WeightManifest,
    target: memoryview,
    *,
    base: memoryview | None,
    config: DeltaConfig,
    only: Sequence[int] | None = None,
) -> None:
    """Apply the delta `encoded` to a base: `target` then holds the weights of `manifest`.

    `short` describes the delta, in as many parts as the weights have. The base is in `base`, or in
    `target` itself; both hold only some buckets if `only` names them (see `Manifest.only`). Raises
    DigestMismatchError when they are not what the manifest says; `target` is undefined then.
    """
    held = target if base is None else base
    numbers = range(len(manifest.digests)) if only is None else only
    kept = manifest if only is None else manifest.only(only)
    if len(held) != kept.total_bytes:
        raise DigestMismatchError(f"the base has {len(held)} bytes, the weights {kept.total_bytes}")
    pieces = _pieces(encoded, short, manifest)
    after = np.frombuffer(target, np.uint8)
    before = None if base is None else np.frombuffer(base, np.uint8)

    def work(position: int, bucket: ByteRange) -> bool:
        cut = slice(*bucket)
        old = None if before is None else before[cut]
        digest = _decode(pieces[numbers[position]], old, after[cut])
        return digest == kept.digests[position]

    try:
        good = _map_buckets(work, kept.buckets(), config.threads)
    except _UNREADABLE as error:
        raise DigestMismatchError(f"the delta cannot be read: {error}") from error
    bad = [bucket for bucket, right in enumerate(good) if not right]
    if bad:
        raise wrong_digests(bad, kept, only)


def _map_buckets(
    work: Callable[[int, ByteRange], R], buckets: Sequence[ByteRange], threads: int
) -> list[R]:
    """Run `work` for all buckets in threads: numpy, zstd and zlib release the GIL."""
    with ThreadPoolExecutor(threads, thread_name_prefix="delta") as pool:
        return list(pool.map(work, range(len(buckets)), buckets))


def _encode(before: Bytes, after: Bytes, config: DeltaConfig) -> list[Any] | None:
    """A bucket's streams, after a header with their lengths; None if too much changed."""
    found, sizes, last = [np.empty(0, "<u2")], [after[:0]], 0
    left = config.max_share * len(after)
    for start in range(0, len(after), config.block_bytes):
        end = start + config.block_bytes
        inside, differences = _changes(before[start:end], after[start:end])
        if len(inside):
            positions = inside + start
            gaps = np.diff(positions, prepend=last)
            if gaps.max() > _LONGEST_GAP:
                fillers = np.arange(last + _LONGEST_GAP, positions[-1], _LONGEST_GAP)
                positions = np.union1d(positions, fillers)
                gaps = np.diff(positions, prepend=last)
                differences = after.take(positions) - before.take(positions)
            found.append(gaps.astype("<u2"))
            sizes.append(differences)
            last, left = int(positions[-1]), left - len(positions)
            if left < 0:
                return None
    halves = np.concatenate(found).view(np.uint8).reshape(-1, 2)
    low, high = (_pack(np.ascontiguousarray(halves[:, half])) for half in (0, 1))
    head = _BUCKET.pack(len(low), len(high), len(halves))
    return [head, low, high, _pack(np.concatenate(sizes))]


def _changes(before: Bytes, after: Bytes) -> tuple[Positions, Bytes]:
    """Where bytes differ, and how (modulo 256). First words are compared: most are equal."""
    whole = len(after) // _WORD * _WORD
    old, new = before[:whole].view(np.uint64), after[:whole].view(np.uint64)
    words = np.flatnonzero(old != new)
    differences = new.take(words).view(np.uint8) - old.take(words).view(np.uint8)
    inside = np.flatnonzero(differences != 0)
    shifts = (words - np.arange(len(words))) * _WORD  # from a place in `differences` to `after`
    found, by = shifts.take(inside >> 3) + inside, differences.take(inside)
    if whole < len(after):
        rest = whole + np.flatnonzero(before[whole:] != after[whole:])
        last = after.take(rest) - before.take(rest)
        return np.concatenate((found, rest)), np.concatenate((by, last))
    return found, by


def _decode(piece: memoryview, before: Bytes | None, after: Bytes) -> str:
    """Put a bucket's changes into `after`, copied from `before` if that is given; its digest.

    _DECODE_BYTES at a time, copied, changed and summed while they are in the CPU cache.
    """
    low_bytes, high_bytes, changes = _BUCKET.unpack_from(piece)
    low_end = _BUCKET.size + low_bytes
    high_end = low_end + high_bytes
    gaps = _unpack(piece[low_end:high_end], changes).astype(np.uint16)
    gaps <<= 8
    gaps |= _unpack(piece[_BUCKET.size : low_end], changes)
    # By torch, which adds at places faster than numpy; it takes nothing that is read-only.
    weights = torch.from_numpy(after)
    differences = torch.from_numpy(_unpack(piece[high_end:], changes).copy())
    step = changes * _DECODE_BYTES // len(after) + 1
    builder, done, last = DigestBuilder(), 0, 0
    for first in range(0, changes + 1, step):
        positions = np.cumsum(gaps[first : first + step], dtype=np.int64)  # seen from `last`
        end = len(after) if first + step > changes else last + int(positions[-1]) + 1
        if before is not None:
            after[done:end] = before[done:end]
        some = differences[first : first + step]
        weights[last:].scatter_add_(0, torch.from_numpy(positions), some)
        builder.update(after[done:end].data)
        done, last = end, end - 1
    return builder.digest()


def _pack(stream: Bytes) -> bytes:
    """Entropy coding; runs too, because high halves are mostly zeros."""
    return zstandard.ZstdCompressor(level=_LEVEL).compress(stream)


def _unpack(stream: memoryview, changes: int) -> Bytes:
    if zstandard.frame_content_size(stream) != changes:
        size = zstandard.frame_content_size(stream)
        raise ValueError(f"a delta has {size} changes instead of {changes}")
    return np.frombuffer(zstandard.ZstdDecompressor().decompress(stream), np.uint8)


def _pieces(
    encoded: memoryview, short: WeightManifest, manifest: WeightManifest
) -> list[memoryview]:
    """Each bucket's piece, in the order of the weights' buckets."""
    if len(short.bounds()) != len(manifest.bounds()):
        raise DigestMismatchError(
            f"a delta in parts of {short.parts}, weights in parts of {manifest.parts}"
        )
    found: list[memoryview] = []
    for part, (start, end) in enumerate(short.bounds()):
        found += _split(encoded[start:end], len(manifest.part(part).digests))
    return found


def _split(encoded: memoryview, buckets: int) -> list[memoryview]:
    if len(encoded) < _HEADER.size or _HEADER.unpack_from(encoded) != (_MAGIC, buckets):
        raise DigestMismatchError(f"not a delta of {buckets} buckets")
    found, position = [], _HEADER.size
    for _ in range(buckets):
        if position + _LENGTH.size > len(encoded):
            raise DigestMismatchError("the delta is cut off")
        (length,) = _LENGTH.unpack_from(encoded, position)
        position += _LENGTH.size
        found.append(encoded[position : position + length])
        position += length
    return found
