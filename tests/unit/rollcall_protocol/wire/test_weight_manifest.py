"""A manifest's parts, buckets and digests fit its buffer, or it is refused."""

from dataclasses import replace

import pytest

from rollcall_protocol.wire.weight_manifest import (
    BucketCheck,
    TensorSpec,
    WeightManifest,
    combine_manifests,
)
from tests.unit.rollcall_protocol.wire.made_up_digests import made_up

TWO_PARTS = WeightManifest((), 25, 10, made_up(1, 2, 3), parts=(15, 10))


def test_each_part_is_cut_into_buckets_of_its_own() -> None:
    assert TWO_PARTS.buckets() == [(0, 10), (10, 15), (15, 25)]
    assert TWO_PARTS.part(0) == WeightManifest((), 15, 10, made_up(1, 2))
    assert TWO_PARTS.part(1) == WeightManifest((), 10, 10, made_up(3))


def test_buckets_are_selected_with_their_digests() -> None:
    assert TWO_PARTS.only((1, 2)) == WeightManifest((), 15, 10, made_up(2, 3), parts=(5, 10))
    assert TWO_PARTS.by_part((1, 2)) == [(1,), (0,)]


def test_parts_are_combined_in_the_order_of_senders() -> None:
    first = WeightManifest((TensorSpec("a", "int8", (15,), 0, 15),), 15, 10, made_up(1, 2))
    second = WeightManifest((TensorSpec("b", "int8", (10,), 0, 10),), 10, 10, made_up(3))
    whole = combine_manifests([first, second])
    assert (whole.parts, whole.digests) == ((15, 10), made_up(1, 2, 3))
    assert [tensor.offset for tensor in whole.tensors] == [0, 15]


@pytest.mark.parametrize(
    ("tensors", "total", "bucket", "digests", "parts", "error"),
    [
        ((), 10, 0, (), (), "bucket_bytes must be positive"),
        ((), 10, 10, made_up(1, 2), (), "2 digests for 1 buckets"),
        ((), 11, 10, made_up(1), (), "1 digests for 2 buckets"),
        ((), 2**40, 1, made_up(1), (), f"1 digests for {2**40} buckets"),
        ((), 10, 10, ("F" * 32,), (), "a digest is not 32 hexadecimal digits"),
        ((), 10, 10, ("0" * 31,), (), "a digest is not 32 hexadecimal digits"),
        ((), -1, 10, (), (), "total_bytes must not be negative"),
        ((), 10, 10, made_up(1), (6, 5), "do not make 10"),
        ((), 10, 10, made_up(1), (11, -1), "do not make 10"),
        (
            (TensorSpec("w", "int8", (11,), 0, 11),),
            10,
            10,
            made_up(1),
            (),
            "w lies outside the buffer",
        ),
        (
            (TensorSpec("w", "int8", (1,), -1, 1),),
            10,
            10,
            made_up(1),
            (),
            "w lies outside the buffer",
        ),
    ],
)
def test_a_manifest_that_does_not_fit_its_buffer_is_refused(
    tensors: tuple[TensorSpec, ...],
    total: int,
    bucket: int,
    digests: tuple[str, ...],
    parts: tuple[int, ...],
    error: str,
) -> None:
    with pytest.raises(ValueError, match=error):
        WeightManifest(tensors, total, bucket, digests, parts)


def test_buckets_of_two_sizes_are_not_combined() -> None:
    with pytest.raises(ValueError, match="buckets of"):
        combine_manifests(
            [WeightManifest((), 10, 10, made_up(1)), WeightManifest((), 5, 5, made_up(1))]
        )


@pytest.mark.parametrize("check", BucketCheck)
def test_what_its_digests_are_stays_with_them(check: BucketCheck) -> None:
    whole = replace(TWO_PARTS, check=check)
    assert {whole.part(0).check, whole.only((1, 2)).check} == {check}
    parts = [whole.part(0), whole.part(1)]
    assert combine_manifests(parts).check is check


def test_parts_with_digests_and_with_checksums_are_not_combined() -> None:
    first, second = TWO_PARTS.part(0), replace(TWO_PARTS.part(1), check=BucketCheck.XXH3)
    with pytest.raises(ValueError, match="checked by blake3 and xxh3"):
        combine_manifests([first, second])
