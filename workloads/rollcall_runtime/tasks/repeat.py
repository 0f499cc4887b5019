"""Repeat five symbols: the prompts of `reverse`, answered in the same order.

A decoder with rotary positions, such as Qwen3, learns it within a hundred steps, as each symbol
stands a fixed number of tokens before its answer; reversing takes it far longer.

The end of the response is no part of it: a rollout's `maxTokens` ends responses. An end would be
right at one position and wrong at all before it, so that a policy may learn never to try it before
it learns where it belongs.
"""

from collections.abc import Sequence


def reward(prompt: Sequence[int], response: Sequence[int]) -> float:
    """The fraction of the symbols that are repeated; missing ones count as wrong."""
    expected = prompt[1:-1]
    right = sum(got == want for got, want in zip(response, expected, strict=False))
    return right / len(expected)
