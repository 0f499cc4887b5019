"""Whether each bucket of a manifest is what its sender had: by a digest or by a checksum."""

from concurrent.futures import ThreadPoolExecutor

import torch

from rollcall_protocol.wire.weight_manifest import BucketCheck, WeightManifest
from rollcall_runtime.sync.checksums import (
    ChecksumBuilder,
    checksum_of,
    new_seed,
    seed_of,
    sums_of,
)
from rollcall_runtime.sync.digests import DigestBuilder, bucket_digests
from rollcall_runtime.sync.memory.buffers import Buffer, FlatBuffer
from rollcall_runtime.sync.memory.device_buffers import DeviceBuffer

_PIECE_BYTES = 32 << 20  # of a device's weights, copied to host memory at a time


class ArrivingBuckets:
    """Checks the buckets of `manifest` while their bytes arrive in `buffer`, in order.

    `longest` bytes arrive at a time at most.
    """

    def __init__(self, buffer: Buffer, manifest: WeightManifest, *, longest: int) -> None:
        self._buffer, self._expected = buffer, manifest.digests
        self._bounds = manifest.buckets() if manifest.check is BucketCheck.SUMS else []
        if not self._bounds:
            self._scratch = buffer.scratch(longest)
            self._builders = [_builder(manifest.check, text) for text in manifest.digests]

    def arrived(self, bucket: int, start: int, end: int) -> None:
        """The next bytes of `bucket` are there; they are read while they are in the cache."""
        if not self._bounds:
            self._builders[bucket].update(self._buffer.read(start, end, self._scratch))

    def is_right(self, bucket: int) -> bool:
        """Whether `bucket`, all of which is there, is what the manifest says."""
        expected = self._expected[bucket]
        if self._bounds:
            data = _tensor(self._buffer, *self._bounds[bucket])
            return sums_of(data, seed_of(expected)) == expected
        return self._builders[bucket].digest() == expected


def wrong_buckets(buffer: Buffer, manifest: WeightManifest) -> list[int]:
    """The buckets in `buffer` that are not what the manifest says."""
    there = ArrivingBuckets(buffer, manifest, longest=manifest.bucket_bytes)
    wrong = []
    for bucket, (start, end) in enumerate(manifest.buckets()):
        there.arrived(bucket, start, end)
        if not there.is_right(bucket):
            wrong.append(bucket)
    return wrong


def check_buckets(
    buffer: FlatBuffer, bucket_bytes: int, *, cheap: bool, copy: FlatBuffer | None = None
) -> tuple[BucketCheck, tuple[str, ...]]:
    """What a manifest is to say of each bucket: BLAKE3 digests or, `cheap`, checksums.

    Weights in device memory are copied to the host buffer `copy` too; one piece is copied while the
    previous one is read. Without a `copy` their checksums are computed on the device.
    """
    seed = new_seed()
    starts = range(0, buffer.nbytes, bucket_bytes)
    if buffer.device == "cpu":
        if not cheap:
            return BucketCheck.BLAKE3, bucket_digests(buffer.memory, bucket_bytes)
        memory = buffer.memory
        made = (checksum_of(memory[start : start + bucket_bytes], seed) for start in starts)
        return BucketCheck.XXH3, tuple(made)
    if cheap and copy is None:
        ends = (min(start + bucket_bytes, buffer.nbytes) for start in starts)
        pairs = zip(starts, ends, strict=True)
        sums = (sums_of(_tensor(buffer, start, end), seed) for start, end in pairs)
        return BucketCheck.SUMS, tuple(sums)
    builders: list[DigestBuilder | ChecksumBuilder] = [
        ChecksumBuilder(seed) if cheap else DigestBuilder() for _ in starts
    ]
    _read_device(buffer, bucket_bytes, builders, copy)
    kind = BucketCheck.XXH3 if cheap else BucketCheck.BLAKE3
    return kind, tuple(builder.digest() for builder in builders)


def _read_device(
    buffer: FlatBuffer,
    bucket_bytes: int,
    builders: list[DigestBuilder | ChecksumBuilder],
    copy: FlatBuffer | None,
) -> None:
    pieces = [
        (bucket, start, min(start + _PIECE_BYTES, end))
        for bucket, first in enumerate(range(0, buffer.nbytes, bucket_bytes))
        for end in [min(first + bucket_bytes, buffer.nbytes)]
        for start in range(first, end, _PIECE_BYTES)
    ]
    longest = max((end - start for _, start, end in pieces), default=0)
    halves = [buffer.scratch(longest) for _ in range(2 if copy is None else 0)]

    def load(number: int) -> memoryview:
        _, start, end = pieces[number]
        target = halves[number % 2] if copy is None else copy.memory[start:end]
        return buffer.read(start, end, target)

    with ThreadPoolExecutor(1, thread_name_prefix="snapshot digests") as copying:
        loading = [copying.submit(load, 0)] if pieces else []
        for number, (bucket, _, _) in enumerate(pieces):
            data = loading.pop().result()
            if number + 1 < len(pieces):
                loading.append(copying.submit(load, number + 1))
            builders[bucket].update(data)


def _builder(check: BucketCheck, expected: str) -> DigestBuilder | ChecksumBuilder:
    return DigestBuilder() if check is BucketCheck.BLAKE3 else ChecksumBuilder(seed_of(expected))


def _tensor(buffer: Buffer, start: int, end: int) -> torch.Tensor:
    """Bytes [start, end) as uint8, on the device that holds them where torch has it."""
    root = buffer.root
    if isinstance(root, DeviceBuffer):
        first = buffer.address - root.address
        return root.tensor(first + start, end - start)
    if start == end:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(buffer.memory[start:end], dtype=torch.uint8)
