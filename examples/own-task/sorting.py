"""Reward of the task "sort five symbols": the fraction of the answer's positions that are right.

A prompt is BOS, five symbols, SEP; the right response is the symbols in ascending order, then EOS.
"""

from collections.abc import Sequence

BOS, SEP, EOS = 0, 1, 2


def reward(prompt: Sequence[int], response: Sequence[int]) -> float:
    """A number from 0 to 1 for one response; both arguments are token numbers."""
    expected = [*sorted(prompt[1:-1]), EOS]
    right = sum(got == want for got, want in zip(response, expected, strict=False))
    return right / len(expected)
