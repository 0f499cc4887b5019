"""Streams a state to clients, whole after each change: job snapshots, the serving rollouts."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from aiohttp import web

from rollcall_protocol.wire.job_snapshot import JobSnapshot
from rollcall_protocol.wire.messages import dumps
from rollcall_protocol.wire.serving_rollouts import ServingRollouts

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 5.0
REPORT_SECONDS = 0.05  # from one report to the next; the operator reads no more of one job
REPORT_BYTES_EACH_SECOND = 1 << 18
PROGRESS_SECONDS = 1.0  # least time between reports of progress; changes of members go at once


class StateStream:
    """`snapshot` gives the state; a slow client misses snapshots and delays no other."""

    def __init__(self, snapshot: Callable[[], JobSnapshot | ServingRollouts]) -> None:
        self._snapshot = snapshot
        self._last: dict[asyncio.Event, str] = {}  # by each client's event: what it was sent last
        self._written = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def changed(self) -> None:
        """Send a snapshot to all clients now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for event in self._last:
            event.set()

    def progressed(self) -> None:
        """Send a snapshot to all clients within PROGRESS_SECONDS."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(PROGRESS_SECONDS, self._flush)

    async def delivered(self, seconds: float) -> bool:
        """Wait until the stream has sent a client the present state; whether it has in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while dumps(self._snapshot()) not in self._last.values():
                    self._written.clear()
                    await self._written.wait()
                return True
        return False

    def close(self) -> None:
        """Send the last snapshot and end all streams."""
        self._closed = True
        self.changed()

    def _flush(self) -> None:
        self._timer = None
        self.changed()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Stream one JSON object a line after each change, an empty line as heartbeat.

        What has changed and changed back is no news: heartbeats go on meanwhile.
        """
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        event, clock = asyncio.Event(), asyncio.get_running_loop()
        event.set()
        self._last[event] = ""
        due = clock.time()
        try:
            while True:
                state = ""
                if event.is_set():
                    event.clear()
                    state = dumps(self._snapshot())
                news = "" if state == self._last[event] else state
                if news or clock.time() >= due:
                    await response.write(f"{news}\n".encode())
                    due = clock.time() + HEARTBEAT_SECONDS
                    self._last[event] = news or self._last[event]
                    self._written.set()
                if self._closed and not event.is_set():
                    break
                if state:
                    await asyncio.sleep(_pause(state))
                try:
                    async with asyncio.timeout_at(due):
                        await event.wait()
                except TimeoutError:
                    continue
        except ConnectionResetError:
            log.info("the stream of %s ended", request.remote)
        finally:
            del self._last[event]
        return response


def _pause(line: str) -> float:
    return max(REPORT_SECONDS, len(line) / REPORT_BYTES_EACH_SECOND)
