"""The reward for repeating counts the symbols at their positions."""

import pytest

from rollcall_runtime.tasks.repeat import reward
from rollcall_runtime.tasks.reward_function import load_reward

PROMPT = (0, 3, 4, 5, 6, 7, 1)


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ((3, 4, 5, 6, 7), 1.0),
        ((7, 6, 5, 4, 3), 1 / 5),
        ((3, 4), 2 / 5),
        ((3, 2), 1 / 5),
        ((), 0.0),
        ((3, 4, 5, 6, 7, 7, 2), 1.0),
    ],
)
def test_the_reward_is_the_fraction_of_symbols_that_are_repeated(
    response: tuple[int, ...], expected: float
) -> None:
    assert reward(PROMPT, response) == pytest.approx(expected)


def test_a_job_names_it_by_its_module() -> None:
    assert load_reward("rollcall_runtime.tasks.repeat:reward")(PROMPT, (3,)) == pytest.approx(1 / 5)
