"""Rewards for tests; found by workers that have the repository's root on their path."""

from rollcall_runtime.tasks.reverse import reward


def busy(prompt: tuple[int, ...], response: tuple[int, ...]) -> float:
    """The usual reward, after some 10 ms of nothing but Python."""
    total = 0
    for number in range(200_000):
        total += number
    return reward(prompt, response)
