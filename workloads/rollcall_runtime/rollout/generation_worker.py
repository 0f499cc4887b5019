"""Generates responses for prompt leases in one worker thread."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass

from rollcall_protocol.wire.ids import Version
from rollcall_protocol.wire.messages import PromptLease, Sample
from rollcall_protocol.wire.partial_responses import Response
from rollcall_protocol.wire.reward_errors import RewardError
from rollcall_runtime.rollout.active_lease import ActiveLease
from rollcall_runtime.rollout.inference_engine import InferenceEngine, PartialOutputCallback
from rollcall_runtime.rollout.lease_progress import LeaseProgress
from rollcall_runtime.rollout.served_versions import ServedVersions
from rollcall_runtime.tasks.reward_process import RewardScorer, Score
from rollcall_runtime.worker.errors import SpecError
from rollcall_runtime.worker.telemetry import RolloutMetrics

SLICE_SECONDS = 30.0  # of one engine call; unfinished responses are continued in the next
WHOLE_SECONDS = 600.0  # of one engine call when unfinished responses would be sampled again
STUCK_SECONDS = 30.0  # without a new token beyond the slice: the liveness probe fails


@dataclass(frozen=True, slots=True)
class FinishedLease:
    """A finished lease: its samples, and the version of the oldest token among them.

    Samples of `reward_errors`, and those that were not scored after one, have the reward 0.
    """

    lease: PromptLease
    version: Version
    samples: tuple[Sample, ...]
    reward_errors: tuple[RewardError, ...] = ()


@dataclass(frozen=True, slots=True)
class PartialRollouts:
    """What happens to unfinished responses: `report` is called every `interval` seconds.

    `keep`: they are continued, here or on another rollout; otherwise they are sampled again.
    """

    interval: float
    report: Callable[[], None]
    keep: bool


class GenerationWorker:
    """Works on leases in the order of their arrival, up to `concurrency` in one engine call.

    Belongs to the event loop that runs `run`; only sampling runs in its thread. `reward` scores the
    responses of one lease after the other. `lease_progress` returns the responses so far of all
    leases; `partial.report` is called when there is something new.
    """

    def __init__(
        self,
        *,
        engine: InferenceEngine,
        reward: RewardScorer,
        concurrency: int,
        partial: PartialRollouts,
        served: ServedVersions,
        metrics: RolloutMetrics,
        done: Callable[[FinishedLease], None],
    ) -> None:
        self._engine, self._reward, self._served = engine, reward, served
        self._concurrency, self._partial = concurrency, partial
        self._slice = SLICE_SECONDS if partial.keep else WHOLE_SECONDS
        self._metrics, self._done = metrics, done
        self._waiting: deque[ActiveLease] = deque()
        self._running: list[ActiveLease] = []
        self._revoked: set[str] = set()
        self._alive: float | None = None  # when the running generation last reported a token
        self._arrived = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="generate")

    @property
    def leases(self) -> int:
        """The number of leases that wait or run."""
        return len(self._waiting) + len(self._running)

    def add(self, lease: PromptLease) -> None:
        """Queue a lease."""
        self._waiting.append(ActiveLease.of(lease, keep=self._partial.keep))
        self._changed()
        self._arrived.set()

    def revoke(self, lease: str) -> None:
        """Stop working on a lease; the result of a running one is discarded."""
        before = len(self._waiting)
        self._waiting = deque(active for active in self._waiting if active.lease.lease_id != lease)
        if len(self._waiting) == before and any(a.lease.lease_id == lease for a in self._running):
            self._revoked.add(lease)
        self._changed()

    def return_waiting(self) -> list[LeaseProgress]:
        """Drop the waiting leases and return their progress."""
        returned = [self._progress_of(active) for active in self._waiting]
        self._waiting.clear()
        self._changed()
        return returned

    def return_all(self) -> list[LeaseProgress]:
        """Drop all leases and return their progress; running results are discarded."""
        running = [active for active in self._running if not self._is_revoked(active)]
        returned = [self._progress_of(active) for active in running]
        self._revoked.update(active.lease.lease_id for active in running)
        return [*returned, *self.return_waiting()]

    def lease_progress(self) -> list[LeaseProgress]:
        """The progress of all leases."""
        in_hand = (*self._running, *self._waiting)
        return [self._progress_of(active) for active in in_hand if not self._is_revoked(active)]

    async def idle(self) -> None:
        """Wait until there is no lease."""
        await self._idle.wait()

    def stuck(self) -> str:
        """For the liveness probe: why the thread counts as stuck, or an empty string."""
        alive = self._alive
        seconds = time.monotonic() - alive if alive is not None else 0.0
        if seconds > self._slice + STUCK_SECONDS:
            return f"no token was sampled for {seconds:.0f} s"
        return ""

    async def run(self) -> None:
        """Work until cancelled. SpecError for an unusable prompt."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                self._arrived.clear()
                while not self._waiting:
                    await self._arrived.wait()
                    self._arrived.clear()
                await asyncio.sleep(0)  # leases that arrive together go into one engine call
                self._running = self._take()
                self._mark(self._running)
                self._alive = time.monotonic()
                on_partial = self._callback(self._running, loop)
                groups = await loop.run_in_executor(
                    self._thread, self._generate, self._running, on_partial
                )
                self._alive = None
                finished = self._take_finished(groups)
                async with self._reports():  # leases are held while their responses are scored
                    for active in finished:
                        await self._finish(active)
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _take(self) -> list[ActiveLease]:
        batch: list[ActiveLease] = []
        while self._waiting and len(batch) < self._concurrency:
            if batch and self._waiting[0].lease.group_size != batch[0].lease.group_size:
                break
            batch.append(self._waiting.popleft())
        return batch

    def _mark(self, batch: list[ActiveLease]) -> None:
        now = self._served.now()
        for active in batch:
            if active.since is None or not active.group:
                active.since = now

    def _callback(
        self, batch: list[ActiveLease], loop: asyncio.AbstractEventLoop
    ) -> PartialOutputCallback:
        def callback(groups: list[list[Response]]) -> bool:
            """Runs in the engine's thread."""
            try:
                loop.call_soon_threadsafe(self._progressed, batch, groups)
            except RuntimeError:  # the loop is closed
                return False
            return not all(self._is_revoked(active) for active in batch)

        return PartialOutputCallback(self._partial.interval, callback)

    def _progressed(self, batch: list[ActiveLease], groups: list[list[Response]]) -> None:
        if batch is not self._running:
            return
        self._alive = time.monotonic()
        if self._partial.keep:
            for active, group in zip(batch, groups, strict=True):
                active.group = group
        self._partial.report()

    def _generate(
        self, batch: list[ActiveLease], on_partial: PartialOutputCallback
    ) -> list[list[Response]]:
        """Runs in the thread. The responses of each lease of the batch."""
        if not batch:
            return []
        first = batch[0]
        group_size = first.lease.group_size
        fresh = [Response()] * group_size
        try:
            return self._engine.generate(
                [active.lease.tokens for active in batch],
                group_size=group_size,
                # Another seed for each slice: the same one would repeat its random numbers.
                seed=(first.lease.seed + (7919 * first.attempts if first.group else 0)) % 2**63,
                timeout=self._slice,
                partials=[active.group or fresh for active in batch]
                if any(active.group for active in batch)
                else None,
                on_partial=on_partial,
            )
        except ValueError as error:
            numbers = ", ".join(str(active.lease.prompt) for active in batch)
            problem = f"one of the prompts {numbers} does not fit the model: {error}"
            raise SpecError("spec.data.prompts", problem) from error

    def _take_finished(self, groups: list[list[Response]]) -> list[ActiveLease]:
        """The leases that are to be scored; they stay in `_running`, the others wait again."""
        batch, finished = self._running, []
        for active, group in zip(batch, groups, strict=True):
            if self._is_revoked(active):
                self._revoked.discard(active.lease.lease_id)
            elif all(response.finished for response in group):
                active.group = group
                finished.append(active)
            else:
                active.group = group if self._partial.keep else []
                active.attempts += 1
                self._waiting.appendleft(active)
        self._running = list(finished)
        self._changed()
        return finished

    async def _finish(self, active: ActiveLease) -> None:
        """Score a lease's responses and hand it over, unless it is revoked meanwhile."""
        scores: list[Score] = []
        if not self._is_revoked(active):
            responses = [response.tokens for response in active.group]
            scores = await self._reward.score(active.lease.tokens, responses, active.lease.row)
        self._running = [other for other in self._running if other is not active]
        if self._is_revoked(active):
            self._revoked.discard(active.lease.lease_id)
        else:
            self._done(self._finished(active, scores))
        self._changed()

    @asynccontextmanager
    async def _reports(self) -> AsyncIterator[None]:
        """Report progress meanwhile, as the engine's callback does while it samples."""

        async def report() -> None:
            while True:
                await asyncio.sleep(self._partial.interval)
                self._partial.report()

        reporting = asyncio.create_task(report())
        try:
            yield
        finally:
            reporting.cancel()

    def _finished(self, active: ActiveLease, scores: Sequence[Score]) -> FinishedLease:
        errors = tuple(score for score in scores if isinstance(score, RewardError))
        rewards = [0.0 if isinstance(score, RewardError) else score for score in scores]
        rewards += [0.0] * (len(active.group) - len(scores))
        samples = tuple(
            Sample(g.tokens, g.logprobs, g.versions, reward)
            for g, reward in zip(active.group, rewards, strict=True)
        )
        own = active.own_tokens()
        scored = zip(scores, own, strict=False)
        self._metrics.sampled(
            rewards=[s for s, tokens in scored if tokens and not isinstance(s, RewardError)],
            tokens=sum(own),
        )
        version = active.version(self._served)
        if version is None:
            raise RuntimeError(f"the engine sampled no token for lease {active.lease.lease_id}")
        return FinishedLease(active.lease, version, samples, errors)

    def _progress_of(self, active: ActiveLease) -> LeaseProgress:
        return LeaseProgress(active.lease, active.version(self._served), tuple(active.group))

    def _is_revoked(self, active: ActiveLease) -> bool:
        return active.lease.lease_id in self._revoked

    def _changed(self) -> None:
        self._metrics.requests_running.set(self.leases)
        if self.leases:
            self._idle.clear()
        else:
            self._idle.set()
