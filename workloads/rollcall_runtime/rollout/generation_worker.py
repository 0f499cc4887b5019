"""Generates responses for prompt leases: a request to the engine for each, many at once."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace

from rollcall_protocol.sampling_config import SamplingConfig, sampling_of
from rollcall_protocol.wire.ids import Version
from rollcall_protocol.wire.messages import PromptLease, Sample
from rollcall_protocol.wire.partial_responses import Response
from rollcall_protocol.wire.reward_errors import RewardError
from rollcall_runtime.rollout.active_lease import ActiveLease
from rollcall_runtime.rollout.conversation import Conversations
from rollcall_runtime.rollout.inference_engine import GenerationRequest, InferenceEngine
from rollcall_runtime.rollout.lease_progress import LeaseProgress
from rollcall_runtime.rollout.served_versions import ServedVersions
from rollcall_runtime.rollout.turns import cut, since
from rollcall_runtime.tasks.environments.environment_process import EnvironmentFailedError
from rollcall_runtime.tasks.reward_process import RewardScorer, Score, SummedReward
from rollcall_runtime.worker.asyncio_helpers import first_of
from rollcall_runtime.worker.errors import SpecError
from rollcall_runtime.worker.telemetry import RolloutMetrics

STUCK_SECONDS = 60.0  # without a new token: the liveness probe fails
_LOOK_SECONDS = 0.5  # between two looks at whether the engine has failed
_AGAIN_SECONDS = 0.1  # before a request is made again that the engine ended without a token
_SAMPLE_SEEDS = 0x9E3779B97F4A7C15  # between those of two samples of a prompt


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
    """Samples the responses of up to `concurrency` leases at once, in the order of their arrival.

    Belongs to the event loop that runs `run`. Each response is a request of its own, which ends by
    itself, or as many as it has turns with `conversations`; `reward` scores those of a lease once
    all are there, while others are sampled. `lease_progress` returns the responses so far of all
    leases; `partial.report` is called when there is something new.
    """

    def __init__(
        self,
        *,
        engine: InferenceEngine,
        reward: RewardScorer,
        concurrency: int,
        sampling: SamplingConfig,
        partial: PartialRollouts,
        served: ServedVersions,
        metrics: RolloutMetrics,
        done: Callable[[FinishedLease], None],
        conversations: Conversations | None = None,
    ) -> None:
        self._engine, self._reward, self._served = engine, reward, served
        self._conversations = conversations
        self._concurrency, self._sampling, self._partial = concurrency, sampling, partial
        self._metrics, self._done = metrics, done
        self._waiting: deque[ActiveLease] = deque()
        self._running: dict[str, ActiveLease] = {}  # by lease: sampled, or scored
        self._tasks: dict[str, asyncio.Task[None]] = {}  # of those that run
        self._sampled: set[str] = set()  # the running ones that the engine has work for
        self._requests = 0  # that the engine works on
        self._token_at = 0.0  # when the last token came, or the first of these requests began
        self._news = False  # a token since the last report
        self._failed: asyncio.Queue[BaseException] = asyncio.Queue()
        self._arrived = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def leases(self) -> int:
        """The number of leases that wait or run."""
        return len(self._waiting) + len(self._running)

    def add(self, lease: PromptLease) -> None:
        """Queue a lease behind those that wait."""
        in_turns = self._conversations is not None
        self._waiting.append(ActiveLease.of(lease, keep=self._partial.keep, in_turns=in_turns))
        self._changed()

    def revoke(self, lease: str) -> None:
        """Stop working on a lease, at once."""
        self._waiting = deque(active for active in self._waiting if active.lease.lease_id != lease)
        self._stop(lease)
        self._changed()

    def return_waiting(self) -> list[LeaseProgress]:
        """Drop the waiting leases and return their progress."""
        returned = [self._progress_of(active) for active in self._waiting]
        self._waiting.clear()
        self._changed()
        return returned

    def return_all(self) -> list[LeaseProgress]:
        """Stop working on all leases and return their progress."""
        returned = [self._progress_of(active) for active in self._running.values()]
        for lease in list(self._running):
            self._stop(lease)
        return [*returned, *self.return_waiting()]

    def lease_progress(self) -> list[LeaseProgress]:
        """The progress of all leases."""
        return [self._progress_of(active) for active in (*self._running.values(), *self._waiting)]

    async def idle(self) -> None:
        """Wait until there is no lease."""
        await self._idle.wait()

    def stuck(self) -> str:
        """For the liveness probe: why sampling counts as stuck, or an empty string."""
        seconds = time.monotonic() - self._token_at if self._requests else 0.0
        if seconds > STUCK_SECONDS:
            return f"no token was sampled for {seconds:.0f} s"
        return ""

    async def run(self) -> None:
        """Work until cancelled. SpecError for an unusable prompt, RuntimeError of the engine."""
        try:
            await first_of(
                self._start_leases(), self._raise_errors(), self._watch(), self._report_news()
            )
        finally:
            tasks = list(self._tasks.values())
            for lease in list(self._running):
                self._stop(lease)
            await asyncio.gather(*tasks, return_exceptions=True)

    # --- inside --------------------------------------------------------------------------------

    async def _start_leases(self) -> None:
        while True:
            while self._waiting and len(self._sampled) < self._concurrency:
                active = self._waiting.popleft()
                lease = active.lease.lease_id
                self._running[lease] = active
                self._sampled.add(lease)
                self._tasks[lease] = task = asyncio.create_task(self._work(active))
                task.add_done_callback(self._keep_error)
            self._arrived.clear()
            await self._arrived.wait()

    def _keep_error(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed.put_nowait(error)

    async def _raise_errors(self) -> None:
        raise await self._failed.get()

    async def _watch(self) -> None:
        while True:
            if problem := self._engine.failure:
                raise RuntimeError(f"the inference engine failed: {problem}")
            await asyncio.sleep(_LOOK_SECONDS)

    async def _report_news(self) -> None:
        """Report at each interval in which a token came, or users' code was waited for."""
        while True:
            await asyncio.sleep(self._partial.interval)
            conversing = self._conversations is not None and bool(self._sampled)
            if self._news or conversing or len(self._running) > len(self._sampled):
                self._news = False
                self._partial.report()

    async def _work(self, active: ActiveLease) -> None:
        """Sample a lease's responses, score them, and hand them over."""
        lease = active.lease.lease_id
        await self._sample_all(active)
        self._end_sampling(lease)
        scores = await self._score(active)
        del self._running[lease], self._tasks[lease]
        self._done(self._finished(active, scores))
        self._changed()

    def _stop(self, lease: str) -> None:
        """Forget a running lease; harmless for any other."""
        if self._running.pop(lease, None) is not None:
            self._tasks.pop(lease).cancel()
            self._end_sampling(lease)

    def _end_sampling(self, lease: str) -> None:
        self._sampled.discard(lease)
        self._arrived.set()

    async def _sample_all(self, active: ActiveLease) -> None:
        lease = active.lease
        if active.since is None or not any(response.tokens for response in active.group):
            active.since = self._served.now()
        active.group = active.group or [Response()] * lease.group_size
        try:
            sampling = sampling_of(self._sampling, lease.row)
            samples = [
                asyncio.create_task(
                    self._sample(active, number, GenerationRequest(lease.tokens, sampling, seed))
                )
                for number, seed in enumerate(_seeds(lease))
            ]
            try:
                await asyncio.gather(*samples)
            finally:
                for sample in samples:
                    sample.cancel()
        except SpecError:
            raise
        except ValueError as error:
            problem = f"prompt {lease.prompt} does not fit the model: {error}"
            raise SpecError("spec.data.prompts", problem) from error

    async def _sample(self, active: ActiveLease, number: int, request: GenerationRequest) -> None:
        """Sample a response until it is finished."""
        began = time.monotonic()
        if self._conversations is None:
            if not active.group[number].finished:
                await self._sample_turn(active, number, request)
            active.seconds[number] = time.monotonic() - began
            return
        conversation = self._conversations.new(active.lease, number)
        try:
            active.group[number] = await conversation.begin(active.group[number])
            while not active.group[number].finished:
                turn = conversation.request(request, active.group[number])
                await self._sample_turn(active, number, turn)
                active.group[number] = await conversation.answer(active.group[number])
            active.environment_rewards[number] = conversation.reward
        except EnvironmentFailedError as error:
            active.environment_errors[number] = RewardError(
                number, error.kind, error.value, error.file, error.line, environment=True
            )
            active.group[number] = replace(active.group[number], finished=True)
        finally:
            active.seconds[number] = time.monotonic() - began
            conversation.close()

    async def _sample_turn(
        self, active: ActiveLease, number: int, request: GenerationRequest
    ) -> None:
        """Request what follows the prompt of `request` in a response, until that has ended."""
        before = len(request.prompt) - len(active.lease.tokens)  # tokens of earlier turns
        ended = False
        with self._at_work():
            while not ended:
                start = active.group[number]
                if not self._partial.keep:
                    start = active.group[number] = cut(start, before)
                begun = since(start, before)
                async with aclosing(self._engine.generate(replace(request, begun=begun))) as pieces:
                    async for piece in pieces:
                        self._token_at, self._news = time.monotonic(), True
                        ended = piece.finished
                        new = piece.after(active.group[number])
                        in_turns = self._conversations is not None
                        active.group[number] = replace(new, finished=False) if in_turns else new
                if active.group[number] == start and not ended:
                    await asyncio.sleep(_AGAIN_SECONDS)

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """The engine works on one more request."""
        if not self._requests:
            self._token_at = time.monotonic()
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1

    async def _score(self, active: ActiveLease) -> list[Score]:
        """Rewards of the samples; the error of its environment stands for a sample's that has one.

        There may be fewer, see RewardScorer.
        """
        lease, responses = active.lease, [response.tokens for response in active.group]
        gained = [active.environment_rewards.get(number, 0.0) for number in range(len(responses))]
        scores = await self._reward.score(lease.tokens, responses, lease.row, gained)
        errors = active.environment_errors
        return [errors.get(number, score) for number, score in enumerate(scores)]

    def _finished(self, active: ActiveLease, scores: Sequence[Score]) -> FinishedLease:
        errors = tuple(score for score in scores if isinstance(score, RewardError))
        rewards = [0.0 if isinstance(score, RewardError) else score for score in scores]
        rewards += [0.0] * (len(active.group) - len(scores))
        samples = tuple(
            Sample(
                g.tokens,
                g.logprobs,
                g.versions,
                float(reward),
                parts=reward.parts if isinstance(reward, SummedReward) else (),
                seconds=round(active.seconds.get(number, 0.0), 3),
            )
            for number, (g, reward) in enumerate(zip(active.group, rewards, strict=True))
        )
        own = active.own_tokens()
        scored = zip(scores, own, strict=False)
        self._metrics.sampled(
            rewards=[s for s, tokens in scored if tokens and not isinstance(s, RewardError)],
            tokens=sum(own),
        )
        version = active.version(self._served)
        if version is None and active.environment_errors:  # before the first token
            version = self._served.at(active.since or 0)
        if version is None:
            raise RuntimeError(f"the engine sampled no token for lease {active.lease.lease_id}")
        return FinishedLease(active.lease, version, samples, errors)

    def _progress_of(self, active: ActiveLease) -> LeaseProgress:
        if not self._partial.keep:  # another rollout would begin anew
            return LeaseProgress(active.lease)
        return LeaseProgress(active.lease, active.version(self._served), tuple(active.group))

    def _changed(self) -> None:
        self._arrived.set()
        self._metrics.requests_running.set(self.leases)
        if self.leases:
            self._idle.clear()
        else:
            self._idle.set()


def _seeds(lease: PromptLease) -> list[int]:
    """A seed for each sample, the same on each rollout that works on the lease."""
    return [(lease.seed + number * _SAMPLE_SEEDS) % 2**63 for number in range(lease.group_size)]
