"""How the rows of a batch are shared out among ranks."""

import random

import pytest

from rollcall_runtime.train.data_parallel_rows import share_rows


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("rows", [0, 1, 7, 64])
def test_each_row_belongs_to_one_rank(rows: int, ranks: int) -> None:
    rng = random.Random(rows)
    lengths = [rng.randint(1, 100) for _ in range(rows)]
    shares = share_rows(lengths, ranks=ranks)
    assert sorted(row for share in shares for row in share) == list(range(rows))
    counts = [len(share) for share in shares]
    assert max(counts) - min(counts) <= 1
    assert all(share == sorted(share) for share in shares)


def test_ranks_get_about_as_many_positions() -> None:
    rng = random.Random(1)
    lengths = [rng.randint(1, 100) for _ in range(64)]
    sums = [sum(lengths[row] for row in share) for share in share_rows(lengths, ranks=4)]
    assert max(sums) - min(sums) <= 100
    assert sum(lengths[:16]) - sum(lengths[16:32]) != 0, "which is not so of the rows as they come"
