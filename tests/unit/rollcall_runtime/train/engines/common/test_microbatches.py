"""Which rows are computed together."""

import random

import pytest

from rollcall_runtime.train.engines.common.microbatches import cut_into_microbatches


def positions(part: list[int], lengths: list[int], *, packing: bool) -> int:
    found = [lengths[row] for row in part]
    return sum(found) if packing else max(found) * len(found)


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("max_tokens", [0, 1, 50, 300, 10_000])
def test_each_row_is_in_one_microbatch_that_keeps_to_the_bound(
    max_tokens: int, packing: bool
) -> None:
    rng = random.Random(max_tokens)
    lengths = [rng.randint(1, 80) for _ in range(40)]
    parts = cut_into_microbatches(lengths, max_tokens=max_tokens, packing=packing)
    assert sorted(row for part in parts for row in part) == list(range(40))
    for part in parts:
        assert part == sorted(part)
        within = not max_tokens or positions(part, lengths, packing=packing) <= max_tokens
        assert within or len(part) == 1, "a row that is too long is alone"


def test_packing_needs_few_microbatches() -> None:
    rng = random.Random(1)
    lengths = [rng.randint(10, 80) for _ in range(100)]
    parts = cut_into_microbatches(lengths, max_tokens=160, packing=True)
    assert len(parts) <= -(-sum(lengths) // 160) * 11 / 9 + 1


def test_without_packing_rows_of_like_length_are_together() -> None:
    lengths = [8, 64] * 8
    parts = cut_into_microbatches(lengths, max_tokens=128, packing=False)
    padding = sum(positions(part, lengths, packing=False) for part in parts) - sum(lengths)
    assert padding == 0
    assert len(parts) == 5


def test_no_rows_need_no_microbatch() -> None:
    assert cut_into_microbatches([], max_tokens=0, packing=False) == []
    assert cut_into_microbatches([], max_tokens=10, packing=True) == []
