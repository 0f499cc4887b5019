"""Reports are read at a bounded share of the time, and long ones beside the event loop."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, cast

import pytest

from rollcall_operator.control import report_stream
from rollcall_operator.control.report_stream import LONG_REPORT, LONGEST_PAUSE, ReportReader
from rollcall_protocol.wire.bounded_lines import TooMuchError
from rollcall_protocol.wire.job_snapshot import JobSnapshot, MemberReport, MemberState
from rollcall_protocol.wire.job_snapshot import TrainingProgress as Progress
from rollcall_protocol.wire.messages import RepeatedMessages, dumps

if TYPE_CHECKING:
    from aiohttp import StreamReader

MODULE = report_stream.__name__
MEMBER = MemberReport("uid", "rollout", "pool", MemberState.IN_SYNC, 1)


def line(step: int, members: int = 0) -> bytes:
    progress = Progress(step, 10, step, None)
    return dumps(JobSnapshot("uid", 1, 0, "", (MEMBER,) * members, progress)).encode() + b"\n"


class Pieces:
    """A stream that has them all already."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces

    async def iter_any(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece


async def steps(*pieces: bytes, reader: ReportReader | None = None) -> list[int]:
    content = cast("StreamReader", Pieces(*pieces))
    read = (reader or ReportReader()).read(content, lambda: None)
    return [report.progress.step async for report in read]


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Those between reports, on a clock that stands."""
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(f"{MODULE}.time.monotonic", lambda: 100.0)
    monkeypatch.setattr(f"{MODULE}.asyncio.sleep", sleep)
    return found


async def test_reports_come_in_their_order(pauses: list[float]) -> None:
    assert await steps(line(1) + line(2)[:9], line(2)[9:] + b"\n", line(3)) == [1, 2, 3]


async def test_reports_that_come_without_end_are_read_at_a_bounded_rate(
    pauses: list[float],
) -> None:
    reader = ReportReader()
    await steps(*map(line, range(60)), reader=reader)
    assert pauses[:10] == [0.0] * 10
    least = 59 * report_stream.REPORT_SECONDS - report_stream.AT_ONCE
    assert least <= pauses[-1] + 1e-6 <= LONGEST_PAUSE, "some may have taken longer to parse"
    await steps(line(61), reader=reader)
    assert pauses[-1] > 0, "another stream is no way around it"


async def test_what_takes_long_to_parse_is_read_at_a_bounded_share(
    pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter(range(100))
    monkeypatch.setattr(
        "rollcall_operator.control.report_stream.time.thread_time", lambda: next(seconds) * 0.2
    )
    await steps(line(1), line(2), line(3))
    assert pauses == [0.0, pytest.approx(1.0), pytest.approx(3.0)]


async def test_a_report_that_takes_too_long_to_parse_ends_the_stream(
    pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter(range(100))
    monkeypatch.setattr(
        "rollcall_operator.control.report_stream.time.thread_time", lambda: float(next(seconds))
    )
    with pytest.raises(TooMuchError, match=r"a report that takes 1.0 s to read"):
        await steps(line(1))


async def test_a_long_report_is_parsed_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[bool] = []
    loads = RepeatedMessages.loads

    def watched(self: RepeatedMessages[JobSnapshot], text: str | bytes) -> JobSnapshot:
        threads.append(threading.current_thread() is threading.main_thread())
        return loads(self, text)

    monkeypatch.setattr(RepeatedMessages, "loads", watched)
    long = line(2, members=LONG_REPORT // 50)
    assert await steps(line(1), long) == [1, 2]
    assert threads == [True, False]


@pytest.mark.parametrize("piece", [b"\n" * (1 << 16), b"x" * (report_stream.BOUNDS.longest + 1)])
async def test_newlines_and_endless_lines_end_the_stream(piece: bytes) -> None:
    async with asyncio.timeout(5):
        with pytest.raises(TooMuchError):
            await steps(piece)
