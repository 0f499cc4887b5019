"""A checksum tells whether bytes are the same and where they were, by the seed that it names."""

from collections.abc import Callable

import pytest
import torch

from rollcall_runtime.sync.checksums import (
    ChecksumBuilder,
    checksum_of,
    new_seed,
    seed_of,
    sums_of,
)
from rollcall_runtime.sync.memory.device_buffers import host_view

BYTES = 40_000  # two rows of sums, and some bytes more
Checksum = Callable[[torch.Tensor, int], str]


def xxh3(data: torch.Tensor, seed: int) -> str:
    return checksum_of(host_view(data), seed)


pytestmark = pytest.mark.parametrize("checksum", [xxh3, sums_of])


def some(nbytes: int = BYTES) -> torch.Tensor:
    return (torch.arange(nbytes) * 7919 % 251).to(torch.uint8)


@pytest.mark.parametrize("nbytes", [0, 1, 16384, BYTES])
def test_a_copy_has_the_same(checksum: Checksum, nbytes: int) -> None:
    assert checksum(some(nbytes), 5) == checksum(some(nbytes).clone(), 5)


@pytest.mark.parametrize("at", [0, 16383, 16384, 32767, 32768, BYTES - 1])
@pytest.mark.parametrize("bit", [1, 128])
def test_one_bit_changes_it(checksum: Checksum, at: int, bit: int) -> None:
    other = some()
    other[at] ^= bit
    assert checksum(other, 5) != checksum(some(), 5)


@pytest.mark.parametrize(
    ("one", "other"), [(0, 4), (4, 16388), (16384, 32768), (100, 20_001), (33_000, 33_001)]
)
def test_two_bytes_in_each_others_place_change_it(checksum: Checksum, one: int, other: int) -> None:
    swapped = some()
    swapped[one], swapped[other] = 1, 2
    before = checksum(swapped, 5)
    swapped[one], swapped[other] = 2, 1
    assert checksum(swapped, 5) != before


@pytest.mark.parametrize("other", [7, 16387, 20_003])
def test_the_signs_of_two_numbers_do_not_make_up_for_each_other(
    checksum: Checksum, other: int
) -> None:
    flipped = some()
    flipped[3] ^= 128
    flipped[other] ^= 128
    assert checksum(flipped, 5) != checksum(some(), 5)


def test_rows_in_each_others_place_change_it(checksum: Checksum) -> None:
    first, second, rest = some()[:16384], some()[16384:32768], some()[32768:]
    assert checksum(torch.cat([second, first, rest]), 5) != checksum(some(), 5)


def test_it_names_its_seed_and_depends_on_it(checksum: Checksum) -> None:
    seeds = [new_seed(), new_seed()]
    found = [checksum(some(), seed) for seed in seeds]
    assert [seed_of(text) for text in found] == seeds
    assert found[0][16:] != found[1][16:]
    assert {len(text) for text in found} == {32}


def test_pieces_have_the_checksum_of_the_whole(checksum: Checksum) -> None:
    builder = ChecksumBuilder(5)
    whole = host_view(some())
    for start in range(0, BYTES, 999):
        builder.update(whole[start : start + 999])
    assert (builder.digest() == checksum(some(), 5)) == (checksum is xxh3)
