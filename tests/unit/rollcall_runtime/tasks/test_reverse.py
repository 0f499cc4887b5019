"""The built-in task: prompts of a fixed form, and a reward that counts right positions."""

import pytest

from rollcall_runtime.tasks.reverse import (
    BOS,
    EOS,
    FIRST_SYMBOL,
    PROMPT_TOKENS,
    RESPONSE_TOKENS,
    SEP,
    VOCABULARY,
    answer,
    prompt,
    reward,
)

A, B, C, D, E = range(FIRST_SYMBOL, FIRST_SYMBOL + 5)
PROMPT = (BOS, A, B, C, D, E, SEP)


def test_a_prompt_is_five_symbols_between_bos_and_sep() -> None:
    for index in range(100):
        tokens = prompt(index, seed=3)
        assert len(tokens) == PROMPT_TOKENS
        assert (tokens[0], tokens[-1]) == (BOS, SEP)
        assert all(FIRST_SYMBOL <= token < VOCABULARY for token in tokens[1:-1])


def test_all_symbols_come_up_about_equally_often() -> None:
    symbols = [token for index in range(400) for token in prompt(index, seed=0)[1:-1]]
    counts = [symbols.count(symbol) for symbol in range(FIRST_SYMBOL, VOCABULARY)]
    assert sum(counts) == 2000
    assert min(counts) > 150


def test_prompts_stay_what_they_are_between_releases() -> None:
    # Checkpoints hold only the number of the next prompt.
    assert prompt(0, seed=0) == (0, 10, 9, 3, 9, 4, 1)
    assert prompt(1000, seed=42) == (0, 5, 10, 8, 4, 11, 1)


def test_the_answer_is_the_symbols_backwards_and_eos() -> None:
    assert answer(PROMPT) == (E, D, C, B, A, EOS)
    assert len(answer(PROMPT)) == RESPONSE_TOKENS


@pytest.mark.parametrize(
    ("response", "right"),
    [
        ((E, D, C, B, A, EOS), 6),
        ((E, D, C, B, A), 5),
        ((E, D, C, B, A, EOS, A, A), 6),
        ((A, D, A, B, E, EOS), 3),
        ((EOS,), 0),
        ((), 0),
    ],
)
def test_the_reward_is_the_fraction_of_right_positions(
    response: tuple[int, ...], right: int
) -> None:
    assert reward(PROMPT, response) == right / 6
