"""A coalescing work queue: many events about a key become one run, never two at a time.

A key is dirty (to be run), active (being run), both (changed while it ran: it runs again), or
delayed (a timer). Failures back off exponentially, each
key for itself.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from rollcall_operator.control.backoff import BackoffPolicy

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

RunKey = Callable[[K], Awaitable[float | None]]
"""Runs a key; returns seconds until it must run again at the latest, None for never."""


class RetryError(Exception):
    """The run failed for a reason that passes (a conflict, an unreachable server): try again."""


class QueueMetrics(Protocol):
    """Counts what the queue does."""

    def queue_depth(self, waiting: int) -> None:
        """So many keys are dirty and not being run."""

    def reconciled(self, *, seconds: float, result: str) -> None:
        """One run ended; result is ok, retry, error or timeout."""


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Times are seconds.

    `min_interval`: pause between two runs of a key, so that bursts coalesce. `longest_interval`:
    that pause after many runs in a row; it doubles with each. `event_delay`: longest pause after a
    failure when an event about the key arrives.
    """

    workers: int = 10
    min_interval: float = 0.05
    longest_interval: float = 0.4
    backoff: BackoffPolicy = field(default_factory=lambda: BackoffPolicy(first=0.2, longest=60.0))
    event_delay: float = 1.0
    run_timeout: float = 60.0


class WorkQueue(Generic[K]):
    """Owns its workers and timers: `start`, then `close`."""

    def __init__(
        self,
        run_key: RunKey[K],
        *,
        settings: QueueSettings | None = None,
        metrics: QueueMetrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run_key = run_key
        self._settings = settings or QueueSettings()
        self._metrics = metrics
        self._clock = clock
        self._ready: asyncio.Queue[K] = asyncio.Queue()
        self._dirty: set[K] = set()
        self._active: dict[K, float] = {}  # since when
        self._timers: dict[K, tuple[float, asyncio.TimerHandle]] = {}
        self._failures: dict[K, int] = {}
        self._pauses: dict[K, float] = {}
        self._rest_until: dict[K, float] = {}
        self._workers: list[asyncio.Task[None]] = []
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False

    def add(self, key: K, *, delay: float = 0.0) -> None:
        """Run `key` in `delay` seconds; if it is due earlier already, that stays."""
        if self._closing or key in self._dirty:
            return
        delay = max(delay, self._rest_until.get(key, 0.0) - self._clock())
        if delay <= 0:
            self._cancel_timer(key)
            self._mark(key)
            return
        due = self._clock() + delay
        planned = self._timers.get(key)
        if planned is not None and planned[0] <= due:
            return
        self._cancel_timer(key)
        handle = asyncio.get_running_loop().call_later(delay, self._due, key)
        self._timers[key] = (due, handle)

    def start(self) -> None:
        """Start the workers; call inside a running loop."""
        for number in range(self._settings.workers):
            self._workers.append(asyncio.create_task(self._work(), name=f"queue worker {number}"))

    async def close(self, *, seconds: float) -> None:
        """Take no more keys, let running ones end for `seconds`, then cancel them."""
        self._closing = True
        for key in list(self._timers):
            self._cancel_timer(key)
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except TimeoutError:
            log.warning("Stopping while these jobs are being reconciled: %s", list(self._active))
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)

    def problem(self) -> str:
        """Why the queue is not alive; empty when it is."""
        ended = [worker.get_name() for worker in self._workers if worker.done()]
        if ended and not self._closing:
            return f"queue workers ended: {', '.join(ended)}"
        bound = 2 * self._settings.run_timeout
        stuck = [key for key, since in self._active.items() if self._clock() - since > bound]
        return f"reconciles that take more than {bound:.0f} s: {stuck}" if stuck else ""

    # --- inside --------------------------------------------------------------------------------

    def _due(self, key: K) -> None:
        self._timers.pop(key, None)
        if not self._closing and key not in self._dirty:
            self._mark(key)

    def _mark(self, key: K) -> None:
        self._dirty.add(key)
        if key not in self._active:
            self._ready.put_nowait(key)
        self._report_depth()

    def _cancel_timer(self, key: K) -> None:
        planned = self._timers.pop(key, None)
        if planned is not None:
            planned[1].cancel()

    def _report_depth(self) -> None:
        if self._metrics is not None:
            self._metrics.queue_depth(self._ready.qsize())

    async def _work(self) -> None:
        while True:
            key = await self._ready.get()
            if self._closing:
                return
            self._dirty.discard(key)
            self._active[key] = self._clock()
            self._idle.clear()
            self._report_depth()
            try:
                again = await self._run(key)
            finally:
                del self._active[key]
                if not self._active:
                    self._idle.set()
            self._finish(key, again)
            # A run that had nothing to wait for has not let anything else run: thousands of them,
            # after a restart, would keep the Lease from being renewed.
            await asyncio.sleep(0)

    async def _run(self, key: K) -> float | None:
        started = self._clock()
        result = "ok"
        try:
            async with asyncio.timeout(self._settings.run_timeout):
                again = await self._run_key(key)
        except TimeoutError:
            result = "timeout"
            log.warning(
                "Reconciling %s took more than %.0f s and was cancelled",
                key,
                self._settings.run_timeout,
            )
            again = self._back_off(key)
        except RetryError as error:
            result = "retry"
            again = self._back_off(key)
            log.info("Reconciling %s is retried in %.1f s: %s", key, again, error)
        except Exception:
            result = "error"
            again = self._back_off(key)
            log.exception("Reconciling %s failed and is retried in %.1f s", key, again)
        else:
            self._failures.pop(key, None)
            self._rest(key, started, goes_on=again is not None and again <= 0)
        if self._metrics is not None:
            self._metrics.reconciled(seconds=self._clock() - started, result=result)
        return again

    def _rest(self, key: K, started: float, *, goes_on: bool) -> None:
        """Have events about `key` wait after its run. `goes_on`: it asked itself to run at once."""
        least, before = self._settings.min_interval, self._pauses.get(key, 0.0)
        in_a_row = started < self._rest_until.get(key, 0.0) + before
        pause = self._pauses[key] = (
            min(2 * before, self._settings.longest_interval) if in_a_row else least
        )
        self._rest_until[key] = self._clock() + (least if goes_on else pause)

    def _back_off(self, key: K) -> float:
        count = self._failures[key] = self._failures.get(key, 0) + 1
        delay = self._settings.backoff.delay(count)
        self._rest_until[key] = self._clock() + min(delay, self._settings.event_delay)
        return delay

    def _finish(self, key: K, again: float | None) -> None:
        if key in self._dirty:  # changed while it ran
            self._dirty.discard(key)
            self.add(key)
        elif again is not None:
            self.add(key, delay=again)
        else:
            self._cancel_timer(key)
            self._rest_until.pop(key, None)
            self._pauses.pop(key, None)
