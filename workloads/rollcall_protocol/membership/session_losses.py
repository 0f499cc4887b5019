"""Counts the sessions that end before a version is published, so that a livelock is seen."""

from rollcall_protocol.wire.job_snapshot import LostSessions, TimeBound

MANY = 5  # sessions in a row
LONG = 60.0  # seconds from the first of them to the last


class SessionLosses:
    """The sessions that ended for lack of time, or by their engine, since the last version.

    Members that were killed are not among them: their streams end at once, and what was interrupted
    goes on without them.
    """

    def __init__(self) -> None:
        self._count, self._first, self._last = 0, 0.0, 0.0
        self._bound: TimeBound | None = None
        self._detail = ""

    def add(self, bound: TimeBound | None, detail: str, now: float) -> None:
        """A session has ended; `bound` is what passed, if anything did."""
        self._first = self._first if self._count else now
        self._count, self._last = self._count + 1, now
        self._bound, self._detail = bound, detail

    def published(self) -> None:
        """A version has reached rollouts."""
        self._count = 0

    def report(self) -> LostSessions | None:
        """What to report; None while there are few losses, or all came within a short time."""
        seconds = self._last - self._first
        if self._count < MANY or seconds < LONG:
            return None
        return LostSessions(self._count, seconds, self._bound, self._detail)
