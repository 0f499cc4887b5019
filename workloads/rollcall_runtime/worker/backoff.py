"""Delays between attempts of a worker process."""

import random


class BackoffDelays:
    """The delays of one series of attempts, in seconds: exponential, with jitter.

    The bound of the first is `first`; it doubles with each delay, up to `longest`.

    Each delay is random, in the upper half of its bound, so that many clients do not retry at once.
    """

    def __init__(self, *, first: float, longest: float) -> None:
        self.first, self.longest = first, longest
        self._bound = first

    def next_delay(self) -> float:
        """Seconds to wait before the next attempt."""
        bound, self._bound = self._bound, min(self.longest, 2 * self._bound)
        return bound * random.uniform(0.5, 1.0)  # noqa: S311 - jitter

    def reset(self) -> None:
        """Start again from `first`: an attempt succeeded."""
        self._bound = self.first
