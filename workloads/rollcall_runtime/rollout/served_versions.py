"""The versions that a rollout served, in order."""

import threading
from collections import deque
from collections.abc import Iterable

from rollcall_protocol.wire.ids import Version

_REMEMBERED = 1024


class ServedVersions:
    """Maps the version number of a token to the version that this rollout served.

    The number alone is ambiguous: numbers may repeat after a restart of the trainer. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._order: deque[tuple[int, Version]] = deque(maxlen=_REMEMBERED)
        self._count = 0

    def add(self, version: Version) -> None:
        """`version` is about to be served; called before the engine loads it."""
        with self._lock:
            self._order.append((self._count, version))
            self._count += 1

    def now(self) -> int:
        """A mark for `oldest`: the version served now and all later ones are `since` it."""
        with self._lock:
            return max(0, self._count - 1)

    def oldest(self, numbers: Iterable[int], *, since: int) -> Version:
        """The oldest version with one of `numbers` served since a mark; ValueError if none."""
        wanted = set(numbers)
        with self._lock:
            served = [v for at, v in self._order if at >= since and v.number in wanted]
        return min(served)
