"""Buckets are what their sender had, or are named: by digests and checksums, wherever they are."""

from dataclasses import replace

import pytest

from rollcall_protocol.wire.weight_manifest import BucketCheck, WeightManifest
from rollcall_runtime.sync.bucket_checks import ArrivingBuckets, check_buckets, wrong_buckets
from rollcall_runtime.sync.memory.buffers import FlatBuffer, HostBuffer
from rollcall_runtime.sync.memory.device_buffers import DeviceBuffer
from tests.unit.rollcall_runtime.sync.staging_memory import torch_memory

SIZE, BUCKET = 50_007, 20_000

CASES = [
    pytest.param("host", False, BucketCheck.BLAKE3, id="host-digests"),
    pytest.param("host", True, BucketCheck.XXH3, id="host-checksums"),
    pytest.param("device", False, BucketCheck.BLAKE3, id="device-digests"),
    pytest.param("device", True, BucketCheck.SUMS, id="device-checksums"),
]
everywhere = pytest.mark.parametrize(("where", "cheap", "check"), CASES)


def filled(where: str) -> FlatBuffer:
    buffer = HostBuffer(SIZE) if where == "host" else DeviceBuffer(torch_memory(), SIZE)
    buffer.write(0, memoryview(bytearray(index * 7 % 251 for index in range(SIZE))))
    return buffer


def described(buffer: FlatBuffer, *, cheap: bool) -> WeightManifest:
    check, digests = check_buckets(buffer, BUCKET, cheap=cheap)
    return WeightManifest((), SIZE, BUCKET, digests, check=check)


def arrive(buffer: FlatBuffer, manifest: WeightManifest, piece: int) -> list[bool]:
    arriving = ArrivingBuckets(buffer, manifest, longest=piece)
    right = []
    for bucket, (first, end) in enumerate(manifest.buckets()):
        for start in range(first, end, piece):
            arriving.arrived(bucket, start, min(start + piece, end))
        right.append(arriving.is_right(bucket))
    return right


@everywhere
def test_what_is_the_same_is_right(where: str, cheap: bool, check: BucketCheck) -> None:
    manifest = described(filled(where), cheap=cheap)
    assert manifest.check is check
    there = filled(where)
    assert wrong_buckets(there, manifest) == []
    assert arrive(there, manifest, 999) == [True, True, True]


@everywhere
@pytest.mark.parametrize(("at", "bucket"), [(0, 0), (BUCKET, 1), (SIZE - 1, 2)])
def test_a_wrong_byte_is_found_in_its_bucket(
    where: str, cheap: bool, check: BucketCheck, at: int, bucket: int
) -> None:
    there = filled(where)
    manifest = described(there, cheap=cheap)
    there.write(at, memoryview(bytearray(b"x")))
    assert manifest.check is check
    assert wrong_buckets(there, manifest) == [bucket]
    assert arrive(there, manifest, 7_000) == [number != bucket for number in range(3)]


@everywhere
def test_a_window_is_checked_by_its_own_bytes(where: str, cheap: bool, check: BucketCheck) -> None:
    manifest = described(filled(where), cheap=cheap)
    assert manifest.check is check
    second = replace(manifest, total_bytes=BUCKET, digests=manifest.digests[1:2])
    window = filled(where).window(BUCKET, 2 * BUCKET)
    assert wrong_buckets(window, second) == []


def test_a_copy_in_host_memory_is_made_and_described_at_once() -> None:
    copy = HostBuffer(SIZE)
    check, digests = check_buckets(filled("device"), BUCKET, cheap=True, copy=copy)
    assert (check, bytes(copy.memory)) == (BucketCheck.XXH3, bytes(filled("host").memory))
    assert wrong_buckets(copy, WeightManifest((), SIZE, BUCKET, digests, check=check)) == []


def test_no_two_versions_have_the_same_seed() -> None:
    first, second = (described(filled("host"), cheap=True).digests for _ in range(2))
    assert not set(first) & set(second)
