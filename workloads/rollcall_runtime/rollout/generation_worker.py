"""From leases to samples: one worker thread that always draws for all that wait."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from rollcall_protocol.wire.ids import Version
from rollcall_protocol.wire.messages import PromptLease, Sample
from rollcall_runtime.rollout.active_lease import ActiveLease
from rollcall_runtime.rollout.inference_engine import Generation, InferenceEngine, Watch
from rollcall_runtime.rollout.lease_progress import LeaseProgress
from rollcall_runtime.rollout.served_versions import ServedVersions
from rollcall_runtime.tasks.reward_function import Reward
from rollcall_runtime.worker.errors import SpecError
from rollcall_runtime.worker.telemetry import RolloutMetrics

SLICE_SECONDS = 30.0  # a call of the engine; what is unfinished then is continued
WHOLE_SECONDS = 600.0  # the same where an unfinished one could only be drawn again
STUCK_SECONDS = 30.0  # without a sign of life beyond the slice: the thread is taken for stuck


@dataclass(frozen=True, slots=True)
class FinishedLease:
    """A finished lease: its samples, and the version of the oldest token among them."""

    lease: PromptLease
    version: Version
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class PartialRollouts:
    """What becomes of generations under way: told every `every` seconds by a call of `tell`.

    `keep`: what is unfinished is continued, here or elsewhere, else it is drawn anew.
    """

    every: float
    tell: Callable[[], None]
    keep: bool


@dataclass(frozen=True, slots=True)
class _Result:
    group: list[Generation]
    rewards: tuple[float, ...]  # none: not finished


class GenerationWorker:
    """Works off leases in the order of their arrival, up to `concurrency` in one engine call.

    Belongs to the event loop that runs `run`; only drawing and rewarding happen in its thread.
    `lease_progress` says how far all leases are; `progress` when somebody should ask for them.
    """

    def __init__(
        self,
        *,
        engine: InferenceEngine,
        reward: Reward,
        concurrency: int,
        progress: PartialRollouts,
        served: ServedVersions,
        metrics: RolloutMetrics,
        done: Callable[[FinishedLease], None],
    ) -> None:
        self._engine, self._reward, self._served = engine, reward, served
        self._concurrency, self._progress = concurrency, progress
        self._slice = SLICE_SECONDS if progress.keep else WHOLE_SECONDS
        self._metrics, self._done = metrics, done
        self._waiting: deque[ActiveLease] = deque()
        self._running: list[ActiveLease] = []
        self._revoked: set[str] = set()
        self._alive: float | None = None  # last sign of life of a generation under way
        self._arrived = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="generate")

    @property
    def in_hand(self) -> int:
        """Leases that wait or run."""
        return len(self._waiting) + len(self._running)

    def add(self, lease: PromptLease) -> None:
        """Take a lease."""
        self._waiting.append(ActiveLease.of(lease, keep=self._progress.keep))
        self._changed()
        self._arrived.set()

    def revoke(self, lease: str) -> None:
        """Stop working on a lease; one that is being drawn is thrown away at the end."""
        before = len(self._waiting)
        self._waiting = deque(work for work in self._waiting if work.lease.lease != lease)
        if len(self._waiting) == before and any(w.lease.lease == lease for w in self._running):
            self._revoked.add(lease)
        self._changed()

    def surrender(self) -> list[LeaseProgress]:
        """Give up what only waits; returns how far it was."""
        given_up = [self._standing(work) for work in self._waiting]
        self._waiting.clear()
        self._changed()
        return given_up

    def abandon(self) -> list[LeaseProgress]:
        """Give up everything; what is drawn from now on is thrown away."""
        running = [work for work in self._running if not self._is_revoked(work)]
        given_up = [self._standing(work) for work in running]
        self._revoked.update(work.lease.lease for work in running)
        return [*given_up, *self.surrender()]

    def lease_progress(self) -> list[LeaseProgress]:
        """How far everything is that is in hand."""
        in_hand = (*self._running, *self._waiting)
        return [self._standing(work) for work in in_hand if not self._is_revoked(work)]

    async def idle(self) -> None:
        """Wait until nothing is in hand."""
        await self._idle.wait()

    def stuck(self) -> str:
        """What is wrong with the thread, for the liveness probe; empty when all is well."""
        alive = self._alive
        seconds = time.monotonic() - alive if alive is not None else 0.0
        if seconds > self._slice + STUCK_SECONDS:
            return f"no token was drawn for {seconds:.0f} s"
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
                self._alive = time.monotonic()
                watch = self._watch(self._running, loop)
                results = await loop.run_in_executor(self._thread, self._draw, self._running, watch)
                self._alive = None
                self._finish(results)
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
        for work in batch:
            if work.since is None or not work.group:
                work.since = now

    def _watch(self, batch: list[ActiveLease], loop: asyncio.AbstractEventLoop) -> Watch:
        def tell(groups: list[list[Generation]]) -> bool:
            """In the engine's thread."""
            try:
                loop.call_soon_threadsafe(self._progressed, batch, groups)
            except RuntimeError:  # the loop is closed
                return False
            return not all(self._is_revoked(work) for work in batch)

        return Watch(self._progress.every, tell)

    def _progressed(self, batch: list[ActiveLease], groups: list[list[Generation]]) -> None:
        if batch is not self._running:
            return
        self._alive = time.monotonic()
        if self._progress.keep:
            for work, group in zip(batch, groups, strict=True):
                work.group = group
        self._progress.tell()

    def _draw(self, batch: list[ActiveLease], watch: Watch) -> list[_Result]:
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
                # Another for each part: else the same randomness would draw all of them.
                seed=(first.lease.seed + (7919 * first.attempts if first.group else 0)) % 2**63,
                timeout=self._slice,
                partials=[work.group or fresh for work in batch]
                if any(work.group for work in batch)
                else None,
                watch=watch,
            )
        except ValueError as error:
            numbers = ", ".join(str(work.lease.prompt) for work in batch)
            problem = f"one of the prompts {numbers} does not fit the model: {error}"
            raise SpecError("spec.data.prompts", problem) from error
        return [
            _Result(group, self._rewards(work.lease, group))
            for work, group in zip(batch, groups, strict=True)
        ]

    def _rewards(self, lease: PromptLease, group: list[Generation]) -> tuple[float, ...]:
        if not all(generation.finished for generation in group):
            return ()
        return tuple(self._reward(lease.tokens, generation.tokens) for generation in group)

    def _finish(self, results: list[_Result]) -> None:
        batch, self._running = self._running, []
        for work, result in zip(batch, results, strict=True):
            if self._is_revoked(work):
                self._revoked.discard(work.lease.lease)
            elif result.rewards:
                work.group = result.group
                self._done(self._drawn(work, result.rewards))
            else:
                work.group = result.group if self._progress.keep else []
                work.attempts += 1
                self._waiting.appendleft(work)
        self._changed()

    def _drawn(self, work: ActiveLease, rewards: tuple[float, ...]) -> FinishedLease:
        samples = tuple(
            Sample(g.tokens, g.logprobs, g.versions, reward)
            for g, reward in zip(work.group, rewards, strict=True)
        )
        own = work.own_tokens()
        self._metrics.drew(
            rewards=[reward for reward, tokens in zip(rewards, own, strict=True) if tokens],
            tokens=sum(own),
        )
        version = work.version(self._served)
        if version is None:
            raise RuntimeError(f"the engine drew no token for lease {work.lease.lease}")
        return FinishedLease(work.lease, version, samples)

    def _standing(self, work: ActiveLease) -> LeaseProgress:
        return LeaseProgress(work.lease, work.version(self._served), tuple(work.group))

    def _is_revoked(self, work: ActiveLease) -> bool:
        return work.lease.lease in self._revoked

    def _changed(self) -> None:
        self._metrics.requests_running.set(self.in_hand)
        if self.in_hand:
            self._idle.clear()
        else:
            self._idle.set()
