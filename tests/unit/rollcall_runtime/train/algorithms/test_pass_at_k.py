"""pass@k against all choices of k samples."""

from itertools import combinations

import pytest

from rollcall_runtime.train.algorithms.pass_at_k import pass_at_k


@pytest.mark.parametrize("samples", [1, 4, 6])
def test_it_is_the_share_of_choices_with_a_right_sample(samples: int) -> None:
    for passed in range(samples + 1):
        right = [True] * passed + [False] * (samples - passed)
        for k in range(1, samples + 1):
            choices = list(combinations(right, k))
            expected = sum(any(choice) for choice in choices) / len(choices)
            assert pass_at_k(samples, passed, k) == pytest.approx(expected)


@pytest.mark.parametrize(("samples", "passed", "k"), [(4, 1, 0), (4, 1, 5), (4, 5, 1), (4, -1, 1)])
def test_impossible_numbers_are_refused(samples: int, passed: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"pass@{k} needs at least {k} samples"):
        pass_at_k(samples, passed, k)
