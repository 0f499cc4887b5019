"""Splits a stream into lines within bounds: on bytes and lines a second, and on a line's length.

Who sends is not believed. A stream of nothing but newlines would keep its reader busy for ever.
"""

from collections.abc import Iterator
from dataclasses import dataclass


class TooMuchError(ValueError):
    """A stream has more than an honest sender sends; the message says of what."""


class Allowance:
    """So many at once, and so many a second after that. Times are seconds on one clock."""

    def __init__(self, now: float, *, burst: float, each_second: float) -> None:
        self._burst, self._rate = burst, each_second
        self._left, self._at = burst, now

    def take(self, now: float, count: float = 1.0) -> bool:
        """`count` more have come: whether they are within it. What is beyond takes nothing."""
        refilled = self._left + (now - self._at) * self._rate
        self._left, self._at = min(refilled, self._burst), now
        if self._left < count:
            return False
        self._left -= count
        return True


@dataclass(frozen=True, slots=True)
class LineBounds:
    """What an honest sender stays within: so much at once, and so much a second after that.

    `longest` is that of a line, in bytes. `idle` counts empty lines, which are heartbeats.
    """

    longest: int
    nbytes: int
    bytes_each_second: float
    idle: int = 100
    idle_each_second: float = 10.0


class BoundedLines:
    """The lines of one stream, whose pieces are given to it as they come."""

    def __init__(self, bounds: LineBounds, now: float) -> None:
        self._bounds = bounds
        self._idle = Allowance(now, burst=bounds.idle, each_second=bounds.idle_each_second)
        self._bytes = Allowance(now, burst=bounds.nbytes, each_second=bounds.bytes_each_second)
        self._begun = bytearray()

    def take(self, piece: bytes, now: float) -> Iterator[bytes]:
        """The lines that `piece` ends, but for empty ones. Raises TooMuchError."""
        bounds = self._bounds
        if not self._bytes.take(now, len(piece)):
            raise TooMuchError(f"more than {bounds.bytes_each_second:g} bytes a second")
        first, *others = piece.split(b"\n")
        self._add(first)
        if not others:
            return
        ended, rest = [bytes(self._begun), *others[:-1]], others[-1]
        self._begun = bytearray()
        self._add(rest)
        lines = [line for line in ended if line and not line.isspace()]
        self.idle(now, len(ended) - len(lines))
        for line in lines:
            if len(line) > bounds.longest:
                raise TooMuchError(f"a line of more than {bounds.longest} bytes")
            yield line

    def idle(self, now: float, count: int = 1) -> None:
        """Count lines that say nothing. Raises TooMuchError."""
        if not self._idle.take(now, count):
            raise TooMuchError(f"more than {self._bounds.idle_each_second:g} empty lines a second")

    def _add(self, part: bytes) -> None:
        self._begun += part
        if len(self._begun) > self._bounds.longest:
            raise TooMuchError(f"a line of more than {self._bounds.longest} bytes")
