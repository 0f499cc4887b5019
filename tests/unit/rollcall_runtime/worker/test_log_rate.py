"""Lines that others can cause without end are dropped after some; others never are."""

import logging
import time

import pytest

from rollcall_runtime.worker import log_rate
from rollcall_runtime.worker.log_rate import LINES, REPEATED, RepeatedLines


def lines(
    caught: RepeatedLines, text: str, count: int, *, name: str = "x", repeated: bool = False
) -> int:
    """How many of `count` lines pass."""
    logger, extra = logging.getLogger(name), REPEATED if repeated else {}
    records = (
        logger.makeRecord(name, logging.WARNING, "f", 1, text, (number,), None, extra=extra)
        for number in range(count)
    )
    return sum(caught.filter(record) for record in records)


def test_only_so_many_lines_of_one_text_pass_and_others_are_not_touched() -> None:
    caught = RepeatedLines()
    assert lines(caught, "refused %d", 1000, repeated=True) == LINES
    assert lines(caught, "another %d", 3, repeated=True) == 3
    assert lines(caught, "step %d", 1000) == 1000
    assert lines(caught, "socket.accept() out of system resource %d", 1000, name="asyncio") == LINES


def test_a_minute_later_they_pass_again(monkeypatch: pytest.MonkeyPatch) -> None:
    caught = RepeatedLines()
    assert lines(caught, "refused %d", 100, repeated=True) == LINES
    later = caught._began + log_rate.SECONDS + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert lines(caught, "refused %d", 100, repeated=True) == LINES
