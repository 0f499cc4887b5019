"""Mounted files that are read again when they change."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0  # at most once in so long the files are looked at

T = TypeVar("T")


class RereadFiles(Generic[T]):
    """What `read` makes of the files, and makes of them again when one has changed.

    What it cannot use later (OSError or ValueError) is logged, and the former value holds: a bad
    write to the volume must not lock members out. The first read raises.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        read: Callable[[], T],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` gives seconds."""
        self._paths, self._read, self._clock = tuple(paths), read, clock
        self._looked = clock()
        self._seen = self._signature()
        self._value = read()

    def current(self) -> T:
        """What the files held at most LOOK_SECONDS ago."""
        now = self._clock()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self._look()
        return self._value

    def _look(self) -> None:
        try:
            seen = self._signature()
            if seen == self._seen:
                return
            self._seen = seen
            self._value = self._read()
            log.info("read %s again", self._paths[0])
        except (OSError, ValueError) as error:
            log.warning("cannot use %s, the former content holds: %s", self._paths[0], error)

    def _signature(self) -> tuple[tuple[int, int, int], ...]:
        found = [path.stat() for path in self._paths]
        return tuple((each.st_ino, each.st_size, each.st_mtime_ns) for each in found)
