"""Which groups of samples teach nothing, and how many of them may be left out."""

from collections.abc import Iterable


def rewards_differ(rewards: Iterable[float]) -> bool:
    """Whether a group teaches anything: samples of equal reward have advantages of 0.

    Source: dynamic sampling, DAPO (Yu et al. 2025, equation 11).
    """
    return len(set(rewards)) > 1


class UniformGroupFilter:
    """Leaves out groups whose rewards are all alike, at most `limit` for each batch (0: none).

    Without a limit a task that is solved, or hopeless, would never fill a batch again.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._left_out = limit, 0

    def leaves_out(self, rewards: Iterable[float]) -> bool:
        """Whether to leave out a group with these rewards; counts it if so."""
        if self._left_out >= self._limit or rewards_differ(rewards):
            return False
        self._left_out += 1
        return True

    def batch_taken(self) -> None:
        """A batch is full: as many groups may be left out for the next one."""
        self._left_out = 0
