"""How long a container that has ended waits before it is started again.

https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#restart-policy
"""

from dataclasses import dataclass

FIRST, LONGEST = 10.0, 300.0  # seconds
FORGOTTEN_AFTER = 600.0
"""Seconds of running after which earlier ends no longer count."""


@dataclass(slots=True)
class RestartDelays:
    """No wait at the first end, then 10 s, and twice as long each time."""

    _next: float = 0.0

    def after(self, ran: float) -> float:
        """Seconds to wait, of a container that has run for `ran` seconds."""
        if ran >= FORGOTTEN_AFTER:
            self._next = 0.0
        delay = self._next
        self._next = min(LONGEST, max(FIRST, 2 * delay))
        return delay
