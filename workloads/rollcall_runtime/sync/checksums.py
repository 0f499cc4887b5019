"""Checksums of a bucket, which cost little beside its transfer and find what happens by accident.

Before each stands its random seed, which the manifest tells members alone: an outsider cannot
prepare other bytes of the same checksum. A member could: what comes from a donor, a disk or a store
has BLAKE3 digests (see `digests`).

XXH3 (https://github.com/Cyan4973/xxHash) is for host memory. Sums are for the memory of a device:
tensor operations compute them where the bytes are. They are those of multilinear hashing (Carter,
Wegman: Universal classes of hash functions, 1979) over the sums of rows and of columns.
"""

import secrets

import torch
import xxhash

_ROW_WORDS, _ROW_BYTES = 4096, 4 * 4096
_BLOCK_BYTES = 256 * _ROW_BYTES
_SEED_BITS = 64
_MASK = (1 << _SEED_BITS) - 1


def new_seed() -> int:
    """A random seed of 64 bits."""
    return secrets.randbits(_SEED_BITS)


def seed_of(checksum: str) -> int:
    """The seed of a checksum in a manifest."""
    return int(checksum[: _SEED_BITS // 4], 16)


class ChecksumBuilder:
    """The XXH3 checksum of bytes that come piece by piece; without the GIL."""

    __slots__ = ("_hasher", "_seed")

    def __init__(self, seed: int) -> None:
        self._seed, self._hasher = seed, xxhash.xxh3_64(seed=seed)

    def update(self, piece: memoryview) -> None:
        """Add the next bytes."""
        self._hasher.update(piece)

    def digest(self) -> str:
        """Seed and checksum of all bytes so far, 32 hexadecimal digits."""
        return _text(self._seed, self._hasher.intdigest())


def checksum_of(data: memoryview, seed: int) -> str:
    """The XXH3 checksum of `data`, with its seed."""
    return _text(seed, xxhash.xxh3_64_intdigest(data, seed=seed))


def sums_of(data: torch.Tensor, seed: int) -> str:
    """The checksum of `data` (uint8 [n], at a multiple of 4 bytes), by sums on its device.

    Allocates at most some tens of MiB, and waits for the device.
    """
    whole = data.numel() // _ROW_BYTES * _ROW_BYTES
    columns = torch.zeros(_ROW_WORDS, dtype=torch.int64, device=data.device)
    sums = [columns, data[whole:].to(torch.int64)]
    for start in range(0, whole, _BLOCK_BYTES):
        # Wide, so that sums are exact: only their weighting overflows, by weights that are random.
        block = data[start : min(start + _BLOCK_BYTES, whole)].view(torch.int32)
        words = block.view(-1, _ROW_WORDS).to(torch.int64)
        columns += words.sum(0)
        sums.append(words.sum(1))
    every = torch.cat(sums)
    random = torch.Generator().manual_seed(seed >> 1)
    weights = torch.randint(-(1 << 62), 1 << 62, (len(every),), generator=random) * 2 + 1
    return _text(seed, int((every * weights.to(data.device)).sum()) & _MASK)


def _text(seed: int, value: int) -> str:
    return f"{seed:016x}{value:016x}"
