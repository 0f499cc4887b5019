"""The asynchronous loop of trainer rank 0: take samples, train, publish, and never wait for either.

One event loop serves the coordinator and this loop; computing happens in one thread. While version
v is being sent, step v + 1 is being computed from samples of older versions.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

from rollcall_protocol.job_config import JobConfig
from rollcall_protocol.prompts.ledger_state import LedgerState
from rollcall_protocol.prompts.prompt_ledger import CompletedPrompt
from rollcall_protocol.prompts.trajectory_groups import rewards_of
from rollcall_protocol.wire.ids import Version
from rollcall_protocol.wire.learning import LearningReport
from rollcall_runtime.coordinator.sync_group_driver import Publication
from rollcall_runtime.membership.published_versions import TrainerIncarnation
from rollcall_runtime.sync.open_engine import STREAMED
from rollcall_runtime.sync.weights.snapshots import WeightSnapshot, WeightSnapshotDraft
from rollcall_runtime.train.batch_broadcast import LeaderSignal
from rollcall_runtime.train.checkpoint.checkpointer import TrainState
from rollcall_runtime.train.evaluation import Evaluation
from rollcall_runtime.train.learning_judge import LearningJudge
from rollcall_runtime.train.response_ends import ResponseEnds
from rollcall_runtime.train.samples.sampled_step import SampledStep
from rollcall_runtime.train.step_figures import (
    StepTimes,
    as_text,
    publication_figures,
    step_figures,
)
from rollcall_runtime.train.tracking import Tracking
from rollcall_runtime.train.trainer_rank import StepResult, TrainerRank
from rollcall_runtime.train.weight_recovery import RecoveredWeights
from rollcall_runtime.worker.asyncio_helpers import cancel_all
from rollcall_runtime.worker.telemetry import TrainerMetrics

log = logging.getLogger(__name__)

IDLE_SECONDS = 60.0  # rank 0 sends the other ranks a signal at least this often
STOP_SECONDS = 10.0  # for the publication under way when `stop` is set

T = TypeVar("T")


class Rollouts(Protocol):
    """What the loop calls of the coordinator."""

    async def ready(self, *, at_least: int) -> Version:
        """The first version to publish; its number is `at_least` that."""

    def begin(self, incarnation: TrainerIncarnation, *, ahead: int) -> None:
        """The first version is about to be published, `ahead` of the checkpoint's by as many."""

    async def publish(self, version: Version, snapshot: WeightSnapshot) -> Publication:
        """Bring weights to the live session."""

    def withdraw(self) -> None:
        """Release the newest weights: newcomers cannot fetch them from the trainer any more."""

    def progress(
        self,
        *,
        step: int,
        number: int,
        reward: float | None,
        warning: str,
        learning: LearningReport | None,
        steps_alike: int,
    ) -> None:
        """Report how far training is, a problem that does not stop it, and whether it learns."""


class Samples(Protocol):
    """What the loop calls of the prompts."""

    async def next_batch(self, number: int) -> list[CompletedPrompt]:
        """Samples fresh enough to train version `number`."""

    async def evaluate(self) -> list[tuple[float, ...]]:
        """The rewards of the samples of each held-out prompt."""

    def state(self) -> LedgerState | None:
        """What a checkpoint keeps of the prompts."""


async def _recover_nothing(_step: int) -> RecoveredWeights | None:
    """Train on from the checkpoint's weights."""
    return None


class TrainerLoop:
    """Runs once. `thread` is the one that computes; `stop` may be set at any time.

    Training begins with `state`, unless `recover_weights` returns weights of a later step.
    With weight sync disabled (for comparisons) every version carries the first weights. `learning`
    knows the steps of earlier processes; `ends` tells which responses were cut off.
    """

    def __init__(
        self,
        *,
        config: JobConfig,
        rank: TrainerRank,
        state: TrainState,
        rollouts: Rollouts,
        samples: Samples,
        thread: Executor,
        metrics: TrainerMetrics,
        tracking: Tracking,
        stop: asyncio.Event,
        recover_weights: Callable[
            [int], Coroutine[Any, Any, RecoveredWeights | None]
        ] = _recover_nothing,
        learning: LearningJudge | None = None,
        ends: ResponseEnds | None = None,
    ) -> None:
        self._learning, self._ends = learning or LearningJudge(), ends
        self._recover_weights = recover_weights
        self._config, self._rank = config, rank
        self._rollouts, self._samples = rollouts, samples
        self._thread, self._metrics, self._stop = thread, metrics, stop
        self._tracking = tracking
        self._evaluation = Evaluation(
            config.evaluation, answer=samples.evaluate, record=self._record_evaluation
        )
        self._draft: WeightSnapshotDraft | None = None
        self._state, self._incarnation = state, state.incarnation
        self._next = state.number  # for the next version
        self._first: WeightSnapshot | None = None
        self._publishing: asyncio.Task[None] | None = None
        self._served = -1  # number of the newest version that was published
        self._reward: float | None = None
        # As far as the metrics count them: failed checkpoints, and steps that were skipped.
        self._failures = self._skipped = 0
        self._ended = time.perf_counter()  # of the step before
        self._times = StepTimes()  # of the step under way

    async def run(self) -> bool:
        """Train until the last step or `stop`; whether the last step was reached."""
        self._metrics.step.set(self._rank.step)
        try:
            version = await self._unless_stopped(self._rollouts.ready(at_least=self._next))
            if version is not None and await self._begin(version):
                await self._publish(version)
            while version is not None and not self._over:
                began = time.perf_counter()
                batch = await self._unless_stopped(self._samples.next_batch(version.number))
                self._times.wait_for_batch = time.perf_counter() - began
                self._metrics.wait_for_batch.observe(self._times.wait_for_batch)
                version = await self._train(batch, version) if batch is not None else None
            await self._in_thread(self._rank.signal, LeaderSignal.STOP)
            await self._in_thread(self._rank.stop, self._kept())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS if self._stop.is_set() else None):
                    await self._published()
            await self._evaluation.finish(self._stop)
        finally:
            if self._publishing is not None:
                await cancel_all([self._publishing])
            await self._evaluation.close()
        return self._rank.step >= self._config.algorithm.max_steps

    @property
    def _over(self) -> bool:
        return self._stop.is_set() or self._rank.step >= self._config.algorithm.max_steps

    async def _begin(self, version: Version) -> bool:
        """Copy the first weights; False when `stop` is set."""
        taken = await self._unless_stopped(self._recover_weights(self._rank.step))
        if self._stop.is_set():
            return False
        self._draft = await self._in_thread(self._rank.begin, taken)
        step, every = self._rank.step, self._config.weight_sync.trigger_parameter_sync_step
        self._incarnation = TrainerIncarnation(version.lineage, version.number, step)
        self._rollouts.begin(self._incarnation, ahead=-(-(step - self._state.step) // every))
        return True

    async def _train(self, batch: list[CompletedPrompt], version: Version) -> Version:
        if self._config.weight_sync.staging == STREAMED:
            self._rollouts.withdraw()  # the only buffer is needed again
        lead = partial(self._rank.lead, version=version.number)
        result = await self._in_thread(lead, batch, self._kept())
        self._draft = result.draft
        self._record_step(batch, result)
        if result.tokens:
            sampled = SampledStep(
                self._rank.step, version.number, time.time(), batch, result.tokens
            )
            self._tracking.record_samples(sampled)
        if self._rank.step % self._config.weight_sync.trigger_parameter_sync_step == 0:
            version = replace(version, number=version.number + 1)
            await self._publish(version)
        self._report_progress()
        self._record_times(batch, result)
        return version

    async def _publish(self, version: Version) -> None:
        """Begin to send the newest weights as `version`, once the version before has arrived.

        With `blocking`, and with one copy of the weights, wait until they have arrived as well.
        """
        began = time.perf_counter()
        await self._unless_stopped(self._published())
        if not self._stop.is_set():
            draft, self._draft, self._next = self._draft, None, version.number + 1
            self._publishing = asyncio.create_task(self._send(version, draft, self._rank.step))
            sync = self._config.weight_sync
            if sync.blocking or sync.staging == STREAMED:
                await self._unless_stopped(self._published())
        self._times.wait_for_policy = time.perf_counter() - began
        self._metrics.wait_for_policy.observe(self._times.wait_for_policy)

    async def _send(self, version: Version, draft: WeightSnapshotDraft | None, step: int) -> None:
        publication = await self._rollouts.publish(version, await self._weights(draft))
        self._tracking.record(step, publication_figures(publication))
        self._served = version.number
        self._report_progress()
        self._evaluation.served(step)

    async def _weights(self, draft: WeightSnapshotDraft | None) -> WeightSnapshot:
        if self._first is not None:
            return self._first.share()
        if draft is None:
            raise RuntimeError("there are no weights to publish")
        snapshot = await asyncio.to_thread(draft.finish)
        if not self._config.weight_sync.enabled:
            self._first = snapshot.share()
        return snapshot

    async def _published(self) -> None:
        """Wait for the publication under way; raises what it raised."""
        if self._publishing is not None:
            await asyncio.shield(self._publishing)

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of `work`, or None when `stop` is set. Sends idle signals to other ranks."""
        task, stopped = asyncio.ensure_future(work), asyncio.ensure_future(self._stop.wait())
        try:
            while not (task.done() or stopped.done()):
                watched: set[asyncio.Future[Any]] = {task, stopped}
                if self._publishing is not None and not self._publishing.done():
                    watched.add(self._publishing)
                done, _ = await asyncio.wait(
                    watched, timeout=IDLE_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                if self._publishing in done:
                    await self._published()  # without weights no samples ever come: fail at once
                elif not done:
                    await self._in_thread(self._rank.signal, LeaderSignal.IDLE)
            return task.result() if task.done() else None
        finally:
            await cancel_all([task, stopped])

    def _record_step(self, batch: Sequence[CompletedPrompt], result: StepResult) -> None:
        rewards = [each for item in batch for each in rewards_of(item.completion.samples)]
        self._reward = sum(rewards) / len(rewards)
        metrics = self._metrics
        metrics.step.set(self._rank.step)
        metrics.last_step.set_to_current_time()
        metrics.reward.set(self._reward)
        metrics.train_seconds.observe(result.train_seconds)
        metrics.snapshot_seconds.observe(result.snapshot_seconds)
        if result.policy.wait_for_reference is not None:
            metrics.wait_for_reference.observe(result.policy.wait_for_reference)
        for item in batch:
            metrics.staleness.observe(item.age)
        figures = step_figures(batch, result.policy, self._ends)
        prompts = (item.lease.tokens for item in batch)
        self._learning.step_ended(self._rank.step, figures, prompts)
        metrics.record_figures(figures)
        metrics.skipped_steps.inc(self._rank.health.skipped - self._skipped)
        self._skipped = self._rank.health.skipped
        self._tracking.record(self._rank.step, figures)
        log.info(
            "step %d: %s",
            self._rank.step,
            as_text(figures),
            extra={
                "step": self._rank.step,
                "losses": [update.loss for update in result.policy.actor],
                "figures": figures,
            },
        )

    def _record_times(self, batch: Sequence[CompletedPrompt], result: StepResult) -> None:
        now, times = time.perf_counter(), self._times
        times.step, self._ended, self._times = now - self._ended, now, StepTimes()
        times.train, times.snapshot = result.train_seconds, result.snapshot_seconds
        self._metrics.step_seconds.observe(times.step)
        tokens = sum(len(s.tokens) for item in batch for s in item.completion.samples)
        figures = times.figures(tokens=tokens)
        self._metrics.record_figures(figures)
        self._tracking.record(self._rank.step, figures)

    def _record_evaluation(self, step: int, figures: Mapping[str, float]) -> None:
        self._metrics.evaluation_reward.set(figures["eval/reward/mean"])
        self._tracking.record(step, figures)

    def _kept(self) -> TrainState:
        # The step that is saved makes one version more.
        return TrainState(
            number=self._next + 1,
            ledger=self._samples.state(),
            incarnation=self._incarnation,
        )

    def _report_progress(self) -> None:
        checkpoints = self._rank.checkpoints
        self._metrics.checkpoint_failures.inc(checkpoints.failures - self._failures)
        self._failures = checkpoints.failures
        self._rollouts.progress(
            step=self._rank.step,
            number=self._served,
            reward=self._reward,
            warning="; ".join(filter(None, (checkpoints.problem, self._rank.health.problem))),
            learning=self._learning.report,
            steps_alike=self._learning.steps_alike,
        )

    async def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)
