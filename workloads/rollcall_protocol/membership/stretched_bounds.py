"""Bounds of waits that stretch with what was measured, up to STRETCH_LIMIT times their settings.

On an idle machine a bound is its setting. On a busy one everything takes longer, and a bound that
stays makes each attempt fail like the one before. So whatever was slower than expected gives the
next waits more time, and what was quick again takes that back.

Seconds throughout; where a time is passed in, it is of any monotonic clock.
"""

from collections import deque

from rollcall_protocol.membership.coordinator_effects import ProtocolTimeouts

STRETCH_LIMIT = 6.0  # times the setting; no bound is ever longer
HEADROOM = 3.0  # times the longest wait that is remembered
REMEMBERED = 5  # waits of each kind
DELAYS_ADDED = 2.0  # to a bound of silence
DELAY_MEMORY = 120.0  # seconds that a delay is remembered for
NOTICEABLE = 0.1  # seconds; less is no delay
AT_ONCE = 1.0  # seconds; what fails sooner does not fail for lack of time


def is_slow(seconds: float) -> bool:
    """Whether a wait that ended badly after `seconds` may have ended so for lack of time."""
    return seconds >= AT_ONCE


class StretchedBound:
    """How long waits of one kind may take: `setting`, or three times the longest of the last ones.

    A wait that was given up counts as one of its whole bound. So two of them in a row lead to the
    limit, before the third failure in a row excludes members.
    """

    def __init__(self, setting: float, *, limit: float = STRETCH_LIMIT) -> None:
        self._setting, self._longest = setting, limit * setting
        self._waits: deque[float] = deque(maxlen=REMEMBERED)

    @property
    def seconds(self) -> float:
        """The bound of the next wait."""
        needed = HEADROOM * max(self._waits, default=0.0)
        return min(max(self._setting, needed), self._longest)

    @property
    def stretch(self) -> float:
        """The bound in settings: 1 on an idle machine, at most the limit."""
        return self.seconds / self._setting if self._setting else 1.0

    def took(self, seconds: float) -> None:
        """A wait ended well after `seconds`."""
        self._waits.append(seconds)

    def passed(self) -> None:
        """A wait was given up at its bound."""
        self._waits.append(self.seconds)

    def failed(self, seconds: float) -> bool:
        """A wait ended badly after `seconds`. Whether a bound within the engine may have caused it:
        then it counts as one that was given up.
        """
        slow = is_slow(seconds)
        if slow:
            self.passed()
        return slow


class WaitBounds:
    """The bounds of a sync group's waits, each with its own memory."""

    def __init__(self, timeouts: ProtocolTimeouts) -> None:
        limit = timeouts.stretch_limit
        self.prepare = StretchedBound(timeouts.ack_timeout, limit=limit)
        self.join = StretchedBound(timeouts.join_timeout, limit=limit)
        self.stage = StretchedBound(timeouts.stage_timeout, limit=limit)
        self.commit = StretchedBound(timeouts.commit_timeout, limit=limit)
        self.catch_up = StretchedBound(timeouts.stage_timeout, limit=limit)

    @property
    def engine_stretch(self) -> float:
        """By how much the bounds within the sync engine are to stretch."""
        return max(self.join.stretch, self.stage.stretch)


def checked_stretch(received: float) -> float:
    """A stretch that arrived, or 1 if it cannot be one."""
    return received if 1.0 <= received <= STRETCH_LIMIT else 1.0


class SilenceBound:
    """How long a peer may be silent that says something every `heartbeat` seconds.

    On idle machines that is `setting`. Twice the largest recent delay is added: of this process's
    own event loop, or of a peer that was silent for longer and lives.
    """

    def __init__(self, setting: float, *, heartbeat: float) -> None:
        self.setting = setting
        self._heartbeat = heartbeat
        self._delays: deque[tuple[float, float]] = deque()  # times and seconds, which fall

    def seconds(self, now: float) -> float:
        """The bound now."""
        while self._delays and self._delays[0][0] < now - DELAY_MEMORY:
            self._delays.popleft()
        delay = self._delays[0][1] if self._delays else 0.0
        return min(self.setting + DELAYS_ADDED * delay, STRETCH_LIMIT * self.setting)

    def late(self, seconds: float, now: float) -> None:
        """The own event loop ran a timer `seconds` after it was due."""
        if seconds < NOTICEABLE:
            return
        while self._delays and self._delays[-1][1] <= seconds:
            self._delays.pop()
        self._delays.append((now, seconds))

    def silent(self, seconds: float, now: float) -> None:
        """A peer was silent for `seconds`, and has been heard again."""
        self.late(seconds - self._heartbeat, now)
