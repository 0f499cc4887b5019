"""A reward function that is wrong."""

from collections.abc import Sequence

REWARD = f"{__name__}:reward"


def reward(prompt: Sequence[int], response: Sequence[int]) -> float:
    """As if it divided zero by zero."""
    return float("nan")
