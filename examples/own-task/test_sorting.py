"""Tests of the reward, for pytest: what a reward gets wrong, a model learns."""

from sorting import BOS, EOS, SEP, reward

PROMPT = [BOS, 9, 4, 7, 4, 12, SEP]
RIGHT = [4, 4, 7, 9, 12, EOS]


def test_the_right_answer_gets_the_most() -> None:
    assert reward(PROMPT, RIGHT) == 1


def test_each_wrong_position_costs_its_share() -> None:
    assert reward(PROMPT, [4, 4, 9, 7, 12, EOS]) == 4 / 6


def test_an_answer_that_ends_early_gets_what_it_has() -> None:
    assert reward(PROMPT, [4, 4]) == 2 / 6


def test_nothing_gets_nothing() -> None:
    assert reward(PROMPT, []) == 0


def test_the_prompt_again_is_no_good_answer() -> None:
    assert reward(PROMPT, PROMPT) < 0.5
