"""Regular expressions of a job's settings, on what a model wrote."""

import logging
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")
SECONDS = 2.0  # of processor time for one response


class _TooLongError(Exception):
    pass


def compiled(pattern: str, name: str) -> re.Pattern[str]:
    """The pattern; ValueError names the setting if it is none."""
    try:
        return re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise ValueError(f"{name} {pattern!r} is no regular expression: {error}") from error


def extractor(pattern: str, name: str) -> re.Pattern[str]:
    """A pattern for `last_group`; ValueError names the setting if it is none."""
    found = compiled(pattern, name)
    if found.groups < 1:
        raise ValueError(f"{name} {pattern!r} has no group ( ), which would be compared")
    return found


def matches(pattern: re.Pattern[str], text: str, *, whole: bool, within: float) -> bool:
    """Whether the pattern matches somewhere in `text`, or all of it; False if that takes too long.

    It may take SECONDS, or `within` if that is less.
    """
    match = pattern.fullmatch if whole else pattern.search
    return _bounded(lambda: match(text), pattern, within) is not None


def last_group(pattern: re.Pattern[str], text: str, *, within: float) -> str | None:
    """The first group of the last match in `text`; None without one, or if that takes too long."""

    def find() -> str | None:
        found = None
        for match in pattern.finditer(text):
            found = match.group(1)
        return found

    return _bounded(find, pattern, within)


def _bounded(find: Callable[[], T | None], pattern: re.Pattern[str], within: float) -> T | None:
    """None if a text makes the pattern backtrack without end: a text can do that to many."""
    try:
        with _processor_time(min(SECONDS, within)):
            return find()
    except _TooLongError:
        log.warning("the pattern %r took too long on a response: no match", pattern.pattern)
        return None


@contextmanager
def _processor_time(seconds: float) -> Iterator[None]:
    """Raises _TooLongError after so much of it: `re` looks for signals while it matches."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread gets signals; spec.reward.timeoutSeconds holds
        return

    def end(*_: object) -> None:
        raise _TooLongError

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
