"""Exponential back-off with jitter: one rule for all retries of the operator.

A library such as tenacity wraps a call and sleeps between attempts. Here most waits end early,
when an event says that a retry is worth it, so only the delays are computed.
"""

import random
from dataclasses import dataclass

_LARGEST_EXPONENT = 32


@dataclass(frozen=True, slots=True)
class BackoffPolicy:
    """Delays in seconds: `first`, doubled with each further failure up to `longest`.

    Each delay is shortened by a random half at most, so that retries spread out. The policy holds
    no state: callers count the failures.
    """

    first: float
    longest: float

    def delay(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row; at least one."""
        exponent = min(max(failures, 1) - 1, _LARGEST_EXPONENT)
        delay = min(self.first * 2.0**exponent, self.longest)
        return delay * random.uniform(0.5, 1.0)  # noqa: S311 - spreads retries, guards no secret


WATCHING = BackoffPolicy(first=0.7, longest=15.0)  # of a LIST or WATCH that fails
