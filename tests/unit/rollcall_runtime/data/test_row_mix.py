"""Orders without state: every row once a pass, another order for each key and pass."""

import pytest

from rollcall_runtime.data.row_mix import nth_row, shuffled, weighted_choice


@pytest.mark.parametrize("count", [1, 2, 3, 7, 16, 17, 1000])
def test_it_is_a_permutation(count: int) -> None:
    assert sorted(shuffled(i, count, key="k") for i in range(count)) == list(range(count))


def test_keys_give_other_orders_and_the_same_key_the_same() -> None:
    orders = {key: [shuffled(i, 100, key=key) for i in range(100)] for key in ("a", "b", "c")}
    assert len({tuple(order) for order in orders.values()}) == 3
    assert orders["a"] == [shuffled(i, 100, key="a") for i in range(100)]
    assert orders["a"] != list(range(100))


def test_orders_stay_what_they_are_between_releases() -> None:
    # Checkpoints hold only the number of the next row.
    assert [shuffled(i, 10, key="0/0/0") for i in range(10)] == [3, 4, 2, 9, 1, 7, 0, 8, 5, 6]


def test_every_place_is_about_equally_likely() -> None:
    counts = [0] * 5
    for key in range(1000):
        counts[shuffled(0, 5, key=str(key))] += 1
    assert all(150 < count < 250 for count in counts)


def test_a_number_outside_is_refused() -> None:
    for number in (-1, 5):
        with pytest.raises(ValueError, match="not in range"):
            shuffled(number, 5, key="k")


def test_a_hundred_million_rows_cost_no_more_than_ten() -> None:
    place = shuffled(99_999_999, 100_000_000, key="k")
    assert 0 <= place < 100_000_000


def test_each_pass_has_every_row_in_an_order_of_its_own() -> None:
    first, second = ([nth_row(p * 8 + i, 8, key="k") for i in range(8)] for p in range(2))
    assert sorted(first) == sorted(second) == list(range(8))
    assert first != second


def test_sources_come_in_the_proportion_of_their_weights_and_in_no_fixed_pattern() -> None:
    chosen = [weighted_choice(i, [3, 1], key="k") for i in range(400)]
    for start in range(0, 400, 4):
        assert [source for source, _ in chosen[start : start + 4]].count(0) == 3
    assert len({tuple(s for s, _ in chosen[i : i + 4]) for i in range(0, 400, 4)}) == 4
    for source, count in ((0, 300), (1, 100)):
        assert sorted(n for s, n in chosen if s == source) == list(range(count)), "each item once"
