"""Repeat five symbols: the prompts of `reverse`, answered in the same order.

A decoder with rotary positions, such as Qwen3, learns it within a hundred steps, as each symbol
stands a fixed number of tokens before its answer; reversing takes it far longer.
"""

from collections.abc import Sequence

from rollcall_runtime.tasks.reverse import EOS


def reward(prompt: Sequence[int], response: Sequence[int]) -> float:
    """The fraction of the answer's positions that are right; missing ones count as wrong."""
    expected = (*prompt[1:-1], EOS)
    right = sum(got == want for got, want in zip(response, expected, strict=False))
    return right / len(expected)
