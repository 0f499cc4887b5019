"""Reads what a coordinator streams so that no other job waits for it: it is a user's image."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor

import aiohttp

from rollcall_protocol.wire.bounded_lines import BoundedLines, LineBounds, TooMuchError
from rollcall_protocol.wire.job_snapshot import JobSnapshot
from rollcall_protocol.wire.messages import RepeatedMessages

# A report of 1,000 members has 0.25 MiB, and an honest coordinator sends at most 20 a second.
BOUNDS = LineBounds(longest=2 << 20, nbytes=64 << 20, bytes_each_second=8 << 20)
SHARE = 0.1  # of one processor's time, for the reports of one job
REPORT_SECONDS = 0.05  # from one report to the next
AT_ONCE = 1.0  # seconds that reports may be ahead of both
LONGEST_PAUSE = 5.0  # a coordinator is silent after 11 s
LONGEST_PARSE = 0.5
LONG_REPORT = 1 << 14  # bytes; parsing takes milliseconds

# One for all jobs: the event loop waits for each thread that parses.
_PARSER = ThreadPoolExecutor(1, thread_name_prefix="long-report")


class ReportReader:
    """Parses the reports of one job, at a bounded share of a processor's time."""

    def __init__(self) -> None:
        self._reports = RepeatedMessages(JobSnapshot)
        self._paid_until = 0.0

    async def read(
        self, content: aiohttp.StreamReader, arrived: Callable[[], None]
    ) -> AsyncGenerator[JobSnapshot, None]:
        """The reports of a stream; empty lines are heartbeats. `arrived` is called with bytes.

        It reads on only when the time for it has come: meanwhile an honest coordinator keeps back
        all but its newest state. CodecError for what is no report, TooMuchError.
        """
        lines = BoundedLines(BOUNDS, time.monotonic())
        async for piece in content.iter_any():
            for line in lines.take(piece, time.monotonic()):
                await asyncio.sleep(self._pause())
                arrived()
                yield await self._parsed(line)
            arrived()

    def _pause(self) -> float:
        ahead = self._paid_until - time.monotonic() - AT_ONCE
        return min(max(0.0, ahead), LONGEST_PAUSE)

    async def _parsed(self, line: bytes) -> JobSnapshot:
        seconds = 0.0

        def parse() -> JobSnapshot:
            nonlocal seconds
            began = time.thread_time()
            try:
                return self._reports.loads(line)
            finally:
                seconds = time.thread_time() - began

        try:
            if len(line) < LONG_REPORT:
                report = parse()
            else:
                loop = asyncio.get_running_loop()
                report = await loop.run_in_executor(_PARSER, parse)
        finally:
            begins = max(self._paid_until, time.monotonic())
            self._paid_until = begins + max(REPORT_SECONDS, seconds / SHARE)
        if seconds > LONGEST_PARSE:
            raise TooMuchError(f"a report that takes {seconds:.1f} s to read")
        return report
