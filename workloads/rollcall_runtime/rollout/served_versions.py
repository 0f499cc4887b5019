"""Which versions a rollout served, and when."""

import threading
from collections import deque
from collections.abc import Iterable

from rollcall_protocol.wire.ids import Version

_REMEMBERED = 1024


class ServedVersions:
    """What this rollout served, in order: tells which version a token's bare number means.

    A number alone does not: numbers may repeat after a restart of the trainer. Safe in threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._order: deque[tuple[int, Version]] = deque(maxlen=_REMEMBERED)
        self._count = 0

    def add(self, version: Version) -> None:
        """`version` begins to serve (call this before the engine loads it)."""
        with self._lock:
            self._order.append((self._count, version))
            self._count += 1

    def now(self) -> int:
        """A mark: the version that serves now, and those after it, are `since` this mark."""
        with self._lock:
            return max(0, self._count - 1)

    def oldest(self, numbers: Iterable[int], *, since: int) -> Version:
        """The oldest version of these numbers served since a mark; ValueError if none was."""
        wanted = set(numbers)
        with self._lock:
            served = [v for at, v in self._order if at >= since and v.number in wanted]
        return min(served)
