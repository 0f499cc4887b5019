"""From leases to samples: one worker thread that always draws for all that wait."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from rollcall_protocol.ids import Version
from rollcall_protocol.messages import Lease, Sample
from rollcall_runtime.errors import SpecError
from rollcall_runtime.rollout.engine import Generation, InferenceEngine
from rollcall_runtime.tasks.rewards import Reward
from rollcall_runtime.telemetry import RolloutMetrics

SLICE_SECONDS = 30.0  # a call of the engine; what is unfinished then is continued
STUCK_SECONDS = 30.0  # beyond its slice: the thread is taken for stuck
_REMEMBERED = 1024  # versions


class ServedVersions:
    """What this rollout served, in order: tells which version a token's bare number means.

    A number alone does not: numbers may repeat after a restart of the trainer. Safe in threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._order: deque[tuple[int, Version]] = deque(maxlen=_REMEMBERED)
        self._count = 0

    def add(self, version: Version) -> None:
        """`version` begins to serve (call this before the engine loads it)."""
        with self._lock:
            self._order.append((self._count, version))
            self._count += 1

    def now(self) -> int:
        """A mark: the version that serves now, and those after it, are `since` this mark."""
        with self._lock:
            return max(0, self._count - 1)

    def oldest(self, numbers: Iterable[int], *, since: int) -> Version:
        """The oldest version of these numbers served since a mark; ValueError if none was."""
        wanted = set(numbers)
        with self._lock:
            served = [v for at, v in self._order if at >= since and v.number in wanted]
        return min(served)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A finished lease: its samples, and the version of the oldest token among them."""

    lease: Lease
    version: Version
    samples: tuple[Sample, ...]


@dataclass(slots=True)
class _Work:
    lease: Lease
    partial: list[Generation] | None = None
    since: int | None = None  # mark of the version that its first token may be of
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class _Result:
    group: list[Generation]
    rewards: tuple[float, ...]  # none: not finished


class Generator:
    """Works off leases in the order of their arrival, up to `concurrency` in one engine call.

    Belongs to the event loop that runs `run`; only drawing and rewarding happen in its thread.
    `keep_partial`: what a pause cut short is continued afterwards, else drawn anew.
    """

    def __init__(
        self, *, engine: InferenceEngine, reward: Reward, concurrency: int, keep_partial: bool,
        served: ServedVersions, metrics: RolloutMetrics, done: Callable[[Drawn], None],
    ) -> None:  # fmt: skip
        self._engine, self._reward, self._served = engine, reward, served
        self._concurrency, self._keep_partial = concurrency, keep_partial
        self._metrics, self._done = metrics, done
        self._waiting: deque[_Work] = deque()
        self._running: list[_Work] = []
        self._revoked: set[str] = set()
        self._began: float | None = None
        self._arrived = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="generate")

    @property
    def in_hand(self) -> int:
        """Leases that wait or run."""
        return len(self._waiting) + len(self._running)

    def add(self, lease: Lease) -> None:
        """Take a lease."""
        self._waiting.append(_Work(lease))
        self._changed()
        self._arrived.set()

    def revoke(self, lease: str) -> None:
        """Stop working on a lease; one that is being drawn is thrown away at the end."""
        before = len(self._waiting)
        self._waiting = deque(work for work in self._waiting if work.lease.lease != lease)
        if len(self._waiting) == before and any(w.lease.lease == lease for w in self._running):
            self._revoked.add(lease)
        self._changed()

    def surrender(self) -> list[str]:
        """Give up what only waits; returns the leases."""
        given_up = [work.lease.lease for work in self._waiting]
        self._waiting.clear()
        self._changed()
        return given_up

    def abandon(self) -> list[str]:
        """Give up everything; what is being drawn is thrown away at the end."""
        running = [w.lease.lease for w in self._running if w.lease.lease not in self._revoked]
        self._revoked.update(running)
        return [*running, *self.surrender()]

    async def idle(self) -> None:
        """Wait until nothing is in hand."""
        await self._idle.wait()

    def stuck(self) -> str:
        """What is wrong with the thread, for the liveness probe; empty when all is well."""
        began = self._began
        seconds = time.monotonic() - began if began is not None else 0.0
        if seconds > SLICE_SECONDS + STUCK_SECONDS:
            return f"a generation has not returned for {seconds:.0f} s"
        return ""

    async def run(self) -> None:
        """Work until cancelled. SpecError for prompts or rewards that can never work."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                self._arrived.clear()
                while not self._waiting:
                    await self._arrived.wait()
                    self._arrived.clear()
                await asyncio.sleep(0)  # leases that came together are drawn together
                self._running = self._take()
                self._mark(self._running)
                self._began = time.monotonic()
                results = await loop.run_in_executor(self._thread, self._draw, self._running)
                self._began = None
                self._finish(results)
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _take(self) -> list[_Work]:
        batch: list[_Work] = []
        while self._waiting and len(batch) < self._concurrency:
            if batch and self._waiting[0].lease.group_size != batch[0].lease.group_size:
                break
            batch.append(self._waiting.popleft())
        return batch

    def _mark(self, batch: list[_Work]) -> None:
        now = self._served.now()
        for work in batch:
            if work.since is None or work.partial is None:
                work.since = now

    def _draw(self, batch: list[_Work]) -> list[_Result]:
        """In the thread."""
        if not batch:
            return []
        first = batch[0]
        group_size = first.lease.group_size
        fresh = [Generation()] * group_size
        try:
            groups = self._engine.generate(
                [work.lease.tokens for work in batch],
                group_size=group_size,
                seed=(first.lease.seed + 7919 * first.attempts) % 2**63,
                timeout=SLICE_SECONDS,
                partials=[work.partial or fresh for work in batch]
                if any(work.partial for work in batch)
                else None,
            )
        except ValueError as error:
            numbers = ", ".join(str(work.lease.prompt) for work in batch)
            problem = f"one of the prompts {numbers} does not fit the model: {error}"
            raise SpecError("spec.data.prompts", problem) from error
        return [
            _Result(group, self._rewards(work.lease, group))
            for work, group in zip(batch, groups, strict=True)
        ]

    def _rewards(self, lease: Lease, group: list[Generation]) -> tuple[float, ...]:
        if not all(generation.finished for generation in group):
            return ()
        return tuple(self._reward(lease.tokens, generation.tokens) for generation in group)

    def _finish(self, results: list[_Result]) -> None:
        batch, self._running = self._running, []
        for work, result in zip(batch, results, strict=True):
            if work.lease.lease in self._revoked:
                self._revoked.discard(work.lease.lease)
            elif result.rewards:
                self._done(self._drawn(work, result))
            else:
                work.partial = result.group if self._keep_partial else None
                work.attempts += 1
                self._waiting.appendleft(work)
        self._changed()

    def _drawn(self, work: _Work, result: _Result) -> Drawn:
        samples = tuple(
            Sample(g.tokens, g.logprobs, g.versions, reward)
            for g, reward in zip(result.group, result.rewards, strict=True)
        )
        tokens = sum(len(sample.tokens) for sample in samples)
        self._metrics.drew(rewards=result.rewards, tokens=tokens)
        numbers = {number for sample in samples for number in sample.versions}
        oldest = self._served.oldest(numbers, since=work.since or 0)
        return Drawn(work.lease, oldest, samples)

    def _changed(self) -> None:
        self._metrics.requests_running.set(self.in_hand)
        if self.in_hand:
            self._idle.clear()
        else:
            self._idle.set()
