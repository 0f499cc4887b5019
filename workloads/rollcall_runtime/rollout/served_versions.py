"""The versions that a rollout served, in order."""

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

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
        self._changing = False

    @contextmanager
    def changing_to(self, version: Version) -> Iterator[None]:
        """The engine loads `version`: a token may be of it, or of the former one, until the end."""
        with self._lock:
            self._order.append((self._count, version))
            self._count += 1
            self._changing = True
        try:
            yield
        finally:
            with self._lock:
                self._changing = False

    def now(self) -> int:
        """A mark for `oldest`: the version served now and all later ones are `since` it."""
        with self._lock:
            return max(0, self._count - (2 if self._changing else 1))

    def at(self, mark: int) -> Version:
        """The version that was served at a mark; ValueError if it is not remembered."""
        with self._lock:
            return min(version for at, version in self._order if at == mark)

    def oldest(self, numbers: Iterable[int], *, since: int) -> Version:
        """The oldest version with one of `numbers` served since a mark; ValueError if none."""
        wanted = set(numbers)
        with self._lock:
            served = [v for at, v in self._order if at >= since and v.number in wanted]
        return min(served)
