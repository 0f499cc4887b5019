"""The asynchronous loop: it trains while a version is on its way, and stops on request."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import torch
from prometheus_client import generate_latest

from rollcall_protocol.data_config import DataConfig, DataSource
from rollcall_protocol.job_config import EvaluationConfig, HealthConfig
from rollcall_protocol.prompts.ledger_state import LedgerState
from rollcall_protocol.prompts.prompt_ledger import CompletedPrompt
from rollcall_protocol.wire.ids import Lineage, MemberId, Version
from rollcall_protocol.wire.learning import LearningReport, LearningState
from rollcall_protocol.wire.messages import Completion, PromptLease, Sample
from rollcall_runtime.coordinator.sync_group_driver import Publication
from rollcall_runtime.membership.published_versions import TrainerIncarnation
from rollcall_runtime.sync.weights.snapshots import Snapshotter, WeightSnapshot, WeightSnapshotDraft
from rollcall_runtime.train import trainer_loop
from rollcall_runtime.train.batch_broadcast import LeaderSignal
from rollcall_runtime.train.checkpoint.checkpointer import Checkpointer, TrainState
from rollcall_runtime.train.health import TrainingHealth
from rollcall_runtime.train.learning_judge import WINDOW
from rollcall_runtime.train.roles.model_update import ModelUpdate
from rollcall_runtime.train.roles.policy_step import PolicyStepResult
from rollcall_runtime.train.samples.sampled_step import SampledStep
from rollcall_runtime.train.samples.token_figures import TokenFigures
from rollcall_runtime.train.trainer_loop import TrainerLoop
from rollcall_runtime.train.trainer_rank import StepResult, TrainerRank
from rollcall_runtime.train.weight_recovery import RecoveredWeights
from rollcall_runtime.worker.errors import SpecError
from rollcall_runtime.worker.telemetry import TrainerMetrics
from tests.unit.rollcall_runtime.jobs import job_config
from tests.unit.rollcall_runtime.train.fake_ranks import FakeRanks, as_ranks

FIRST = Version(Lineage(1, 1), 7)
LIFE, LIFE_AT_5 = TrainerIncarnation(FIRST.lineage, 7, 0), TrainerIncarnation(FIRST.lineage, 7, 5)
LABELS = {"namespace": "default", "job": "reverse", "group": "default"}
LEDGER = LedgerState(cursor=3, pending=(1, 2))
SAVED = TrainState(step=0, number=6, ledger=LEDGER)


def batch(number: int) -> list[CompletedPrompt]:
    version = Version(FIRST.lineage, number)
    sample = Sample((3, 2), (-1.0, -1.0), (number, number), 0.5)
    completion = Completion("job-uid", MemberId("a", "b"), "1.1.1", version, (sample, sample))
    return [CompletedPrompt(PromptLease("1.1.1", 0, (0, 5, 1), 2, 0), completion)]


class FakeRank:
    """Its single weight is the number of steps done."""

    def __init__(self, *, publish_every: int = 1, buffers: int = 3) -> None:
        self.step = 0
        self.signals: list[LeaderSignal] = []
        self.tokens: dict[int, TokenFigures] = {}  # of each step
        self.checkpoints = Checkpointer(None, ranks=as_ranks(FakeRanks()), pod_uid="a-pod")
        self.health = TrainingHealth(HealthConfig(), folder=None, rank=0)
        self.saved: TrainState | None = None
        self.publish_every = publish_every
        self.snapshotter = Snapshotter(bucket_bytes=64, buffers=buffers, spare_bytes=0)

    def begin(self, taken: RecoveredWeights | None) -> WeightSnapshotDraft:
        self.step = taken.step if taken else self.step
        return self.snapshot()

    def snapshot(self) -> WeightSnapshotDraft:
        weights = [("weight", torch.tensor([float(self.step)]))]
        return self.snapshotter.take(weights, timeout=1)

    def lead(
        self, answered: Sequence[CompletedPrompt], kept: TrainState, *, version: int
    ) -> StepResult:
        assert answered
        self.step += 1
        due = self.publish_every and self.step % self.publish_every == 0
        update = ModelUpdate(0.1, 1.0, 1e-3, tokens=4, metrics={"mismatch_kl": 0.25})
        draft = self.snapshot() if due else None
        policy = PolicyStepResult([update], with_advantage=0.0)
        return StepResult(policy, draft, 0.01, 0.001, self.tokens)

    def signal(self, signal: LeaderSignal) -> None:
        self.signals.append(signal)

    def stop(self, kept: TrainState) -> None:
        self.saved = kept


class FakeRollouts:
    """Hands out batches while it has some, and holds publications back until let go."""

    def __init__(self, *, batches: int = 100, held: bool = False) -> None:
        self.published: list[tuple[int, float]] = []  # version number, its weight
        self.asked: list[int] = []
        self.reports: list[tuple[int, int]] = []  # step, published version
        self.batches = batches
        self.go = asyncio.Event()
        self.error: Exception | None = None
        self._kept: WeightSnapshot | None = None
        self.evaluated: list[int] = []  # steps
        self.answers = asyncio.Event()  # to held-out prompts come once this is set
        self.answers.set()
        if not held:
            self.go.set()

    async def ready(self, *, at_least: int) -> Version:
        assert at_least == SAVED.number
        return FIRST

    async def publish(self, version: Version, snapshot: WeightSnapshot) -> Publication:
        await self.go.wait()
        if self.error is not None:
            raise self.error
        ((_, weight),) = snapshot.tensors()
        self.published.append((version.number, float(weight)))
        if self._kept is not None:
            self._kept.release()
        self._kept = snapshot
        return Publication(version, 2, 800, stage_seconds=0.5, commit_seconds=0.25, delta=False)

    async def next_batch(self, number: int) -> list[CompletedPrompt]:
        self.asked.append(number)
        if len(self.asked) > self.batches:
            await asyncio.Event().wait()
        return batch(number)

    async def evaluate(self) -> list[tuple[float, ...]]:
        self.evaluated.append(len(self.published) - 1)
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        return [(1.0, 0.0), (0.0, 0.0)]

    def withdraw(self) -> None:
        if self._kept is not None:
            self._kept.release()

    def begin(self, incarnation: TrainerIncarnation, *, ahead: int) -> None:
        self.began = (incarnation, ahead)

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
        self.reports.append((step, number))
        self.warning, self.learning, self.steps_alike = warning, learning, steps_alike

    def state(self) -> LedgerState | None:
        return LEDGER


class RecordedFigures:
    """Instead of TensorBoard."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, Mapping[str, float]]] = []
        self.samples: list[SampledStep] = []

    def record_samples(self, sampled: SampledStep) -> None:
        self.samples.append(sampled)

    def record(self, step: int, figures: Mapping[str, float]) -> None:
        self.steps.append((step, figures))


class Bench:
    def __init__(
        self,
        rank: FakeRank,
        rollouts: FakeRollouts,
        *,
        taken: RecoveredWeights | None = None,
        **config: Any,
    ) -> None:
        async def recover_weights(step: int) -> RecoveredWeights | None:
            assert step == rank.step
            return taken

        self.rank, self.rollouts, self.stop = rank, rollouts, asyncio.Event()
        self.metrics = TrainerMetrics(namespace="default", job="reverse", group="default")
        self.tracking = RecordedFigures()
        self.thread = ThreadPoolExecutor(1)
        self.loop = TrainerLoop(
            config=job_config(**config),
            rank=cast("TrainerRank", rank),
            state=SAVED,
            rollouts=rollouts,
            samples=rollouts,
            thread=self.thread,
            metrics=self.metrics,
            tracking=cast("Any", self.tracking),
            stop=self.stop,
            recover_weights=recover_weights,
        )

    @property
    def waits_for_policy(self) -> float | None:
        """How many of them the metrics have."""
        name = "rollcall_wait_for_policy_seconds_count"
        return self.metrics.registry.get_sample_value(name, self.metrics.labels)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["asyncio.Task[bool]"]:
        task = asyncio.create_task(self.loop.run())
        try:
            async with asyncio.timeout(5):
                yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self.thread.shutdown()


async def test_each_step_makes_a_version_after_that_of_the_first_weights() -> None:
    bench = Bench(FakeRank(), FakeRollouts(), algorithm={"max_steps": 3})
    async with bench.running() as task:
        assert await task
    assert bench.rollouts.published == [(7, 0.0), (8, 1.0), (9, 2.0), (10, 3.0)]
    assert bench.rollouts.asked == [7, 8, 9]
    assert bench.rollouts.reports[-1] == (3, 10)
    assert bench.rank.signals == [LeaderSignal.STOP]
    assert bench.rank.saved == TrainState(number=12, ledger=LEDGER, incarnation=LIFE)


async def test_whether_training_gets_anywhere_is_reported_once_enough_steps_are_known() -> None:
    """All batches have the same prompt."""
    bench = Bench(FakeRank(), FakeRollouts(), algorithm={"max_steps": WINDOW - 1})
    async with bench.running() as task:
        assert await task
    assert bench.rollouts.learning is None
    bench = Bench(FakeRank(), FakeRollouts(), algorithm={"max_steps": WINDOW})
    async with bench.running() as task:
        assert await task
    seen = LearningReport(LearningState.PROMPT_REPEATED, 1, WINDOW, low=0.5, high=0.5)
    assert bench.rollouts.learning == seen
    assert bench.rollouts.steps_alike == WINDOW


async def test_recorded_responses_carry_the_version_that_their_step_trained() -> None:
    rank = FakeRank()
    rank.tokens = {1: TokenFigures([0.5, 0.5])}
    bench = Bench(rank, FakeRollouts(), algorithm={"max_steps": 2})
    async with bench.running() as task:
        assert await task
    found = bench.tracking.samples
    assert [(each.step, each.version) for each in found] == [(1, 7), (2, 8)]
    assert found[0].figures == rank.tokens
    assert list(found[0].groups) == batch(7)
    assert abs(found[0].time - time.time()) < 60


async def test_a_step_without_recorded_responses_hands_none_on() -> None:
    bench = Bench(FakeRank(), FakeRollouts(), algorithm={"max_steps": 2})
    async with bench.running() as task:
        assert await task
    assert bench.tracking.samples == []


async def test_a_version_for_every_other_step() -> None:
    bench = Bench(
        FakeRank(publish_every=2),
        FakeRollouts(),
        algorithm={"max_steps": 4},
        weight_sync={"trigger_parameter_sync_step": 2},
    )
    async with bench.running() as task:
        assert await task
    assert bench.rollouts.published == [(7, 0.0), (8, 2.0), (9, 4.0)]
    assert bench.rollouts.asked == [7, 7, 8, 8]


async def test_a_step_is_trained_while_the_version_before_is_on_its_way() -> None:
    bench = Bench(FakeRank(), FakeRollouts(held=True), algorithm={"max_steps": 3})
    async with bench.running() as task:
        while bench.rank.step < 1:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        assert bench.rank.step == 1, "the next version waits for the one before, and training too"
        assert bench.rollouts.published == []
        bench.rollouts.go.set()
        assert await task
    assert bench.rollouts.published == [(7, 0.0), (8, 1.0), (9, 2.0), (10, 3.0)]


async def test_a_blocking_sync_has_training_wait_for_it() -> None:
    rollouts = FakeRollouts(held=True)
    bench = Bench(FakeRank(), rollouts, algorithm={"max_steps": 1}, weight_sync={"blocking": True})
    async with bench.running() as task:
        await asyncio.sleep(0.05)
        assert rollouts.asked == [], "no sample is asked for before the version has arrived"
        assert bench.waits_for_policy == 0, "what is measured ends with the wait"
        rollouts.go.set()
        assert await task
    assert rollouts.published == [(7, 0.0), (8, 1.0)]
    assert bench.waits_for_policy == 2


async def test_streamed_weights_need_one_buffer_only() -> None:
    bench = Bench(
        FakeRank(buffers=1),
        FakeRollouts(),
        algorithm={"max_steps": 3},
        weight_sync={"staging": "Streamed"},
    )
    async with bench.running() as task:
        assert await task
    assert bench.rollouts.published == [(7, 0.0), (8, 1.0), (9, 2.0), (10, 3.0)]
    assert bench.rank.snapshotter.state.buffers == 1


async def test_without_weight_sync_every_version_carries_the_first_weights() -> None:
    bench = Bench(
        FakeRank(publish_every=0),
        FakeRollouts(),
        algorithm={"max_steps": 3},
        weight_sync={"enabled": False},
    )
    async with bench.running() as task:
        assert await task
    assert bench.rollouts.published == [(7, 0.0), (8, 0.0), (9, 0.0), (10, 0.0)]


async def test_when_stopped_it_saves_and_returns_without_waiting_for_samples() -> None:
    bench = Bench(FakeRank(), FakeRollouts(batches=2))
    async with bench.running() as task:
        while len(bench.rollouts.published) < 3:
            await asyncio.sleep(0.001)
        bench.stop.set()
        assert not await task
    assert bench.rank.step == 2
    assert bench.rank.saved == TrainState(number=11, ledger=LEDGER, incarnation=LIFE)
    assert bench.rank.signals == [LeaderSignal.STOP]


async def test_a_failed_publication_ends_it_though_no_sample_ever_comes() -> None:
    rollouts = FakeRollouts(batches=0)
    rollouts.error = RuntimeError("no coordinator")
    bench = Bench(FakeRank(), rollouts)
    async with bench.running() as task:
        with pytest.raises(RuntimeError, match="no coordinator"):
            await task


async def test_rank_0_sends_idle_signals_while_it_waits(monkeypatch: Any) -> None:
    monkeypatch.setattr(trainer_loop, "IDLE_SECONDS", 0.01)
    bench = Bench(FakeRank(), FakeRollouts(batches=0))
    async with bench.running():
        while bench.rank.signals.count(LeaderSignal.IDLE) < 2:
            await asyncio.sleep(0.005)


async def test_metrics_show_reward_staleness_and_time() -> None:
    bench = Bench(FakeRank(), FakeRollouts(), algorithm={"max_steps": 2})
    async with bench.running() as task:
        await task
    read, labels = bench.metrics.registry.get_sample_value, bench.metrics.labels
    assert read("rollcall_reward", labels) == 0.5
    assert read("rollcall_step", labels) == 2
    assert read("rollcall_step_seconds_count", labels) == 2
    assert read("rollcall_staleness_versions_sum", labels) == 0


async def test_weights_that_are_taken_back_are_published_first_and_their_steps_not_done_again() -> (
    None
):
    taken = RecoveredWeights(Version(Lineage(1, 0), 9), 5, {})
    bench = Bench(FakeRank(), FakeRollouts(), taken=taken, algorithm={"max_steps": 7})
    async with bench.running() as task:
        assert await task
    assert bench.rollouts.began == (LIFE_AT_5, 5)
    assert bench.rollouts.published == [(7, 5.0), (8, 6.0), (9, 7.0)]


@pytest.mark.parametrize(("steps", "ahead"), [(4, 2), (5, 3)])
async def test_samples_have_aged_by_each_version_begun_since_the_checkpoint(
    steps: int, ahead: int
) -> None:
    """A version for every other step: the weights of step 5 are a part of the third."""
    taken = RecoveredWeights(Version(Lineage(1, 0), 9), steps, {})
    bench = Bench(
        FakeRank(publish_every=2),
        FakeRollouts(),
        taken=taken,
        algorithm={"max_steps": steps},
        weight_sync={"trigger_parameter_sync_step": 2},
    )
    async with bench.running() as task:
        assert await task
    assert bench.rollouts.began[1] == ahead


async def test_a_failed_checkpoint_is_counted_and_reported() -> None:
    bench = Bench(FakeRank(), FakeRollouts(), algorithm={"max_steps": 2})
    bench.rank.checkpoints.failures, bench.rank.checkpoints.problem = 3, "step 1 was not saved"
    async with bench.running() as task:
        await task
    read, labels = bench.metrics.registry.get_sample_value, bench.metrics.labels
    assert read("rollcall_checkpoint_failures_total", labels) == 3
    assert bench.rollouts.warning == "step 1 was not saved"


# --- figures, health and evaluation --------------------------------------------------------------


async def test_the_figures_of_each_step_are_tracked_and_shown() -> None:
    bench = Bench(FakeRank(), FakeRollouts(), algorithm={"max_steps": 2})
    began = time.time()
    async with bench.running() as task:
        assert await task
    steps: dict[int, dict[str, float]] = {}
    for step, figures in bench.tracking.steps:
        steps.setdefault(step, {}).update(figures)
    assert sorted(steps) == [0, 1, 2]
    for name in ("timing_s/param_sync", "timing_s/stage", "timing_s/commit", "weight_sync/bytes"):
        assert [name in figures for figures in steps.values()] == [True] * 3, "0: the first weights"
    figures = steps[1]
    assert figures["reward/mean"] == 0.5
    assert figures["actor/pg_loss"] == 0.1
    assert (figures["timing_s/stage"], figures["weight_sync/bytes"]) == (0.5, 800.0)
    assert 0 <= figures["timing_s/wait_for_batch"] < figures["timing_s/step"]
    assert figures["perf/tokens_per_second"] > 0
    shown = generate_latest(bench.metrics.registry).decode()
    for name, value in [("loss", 0.1), ("grad_norm", 1.0), ("mismatch_kl", 0.25)]:
        assert (
            f'rollcall_{name}{{group="default",job="reverse",namespace="default"}} {value}' in shown
        )
    read, last = bench.metrics.registry.get_sample_value, steps[2]
    assert read("rollcall_trainer_idle_ratio", LABELS) == last["trainer/idle_ratio"]
    assert read("rollcall_tokens_per_second", LABELS) == last["perf/tokens_per_second"]
    ended = read("rollcall_last_step_timestamp_seconds", LABELS)
    assert ended is not None
    assert began < ended <= time.time()


async def test_a_resumed_step_is_shown_before_there_is_a_rollout() -> None:
    bench = Bench(FakeRank(), FakeRollouts(batches=0))
    bench.rank.step = 30
    bench.stop.set()
    async with bench.running() as task:
        assert not await task
    assert bench.metrics.registry.get_sample_value("rollcall_step", LABELS) == 30


async def test_what_is_wrong_with_training_is_reported_and_counted() -> None:
    bench = Bench(FakeRank(), FakeRollouts(), algorithm={"max_steps": 1})
    bench.rank.health.problem, bench.rank.health.skipped = "step 1 was skipped", 3
    async with bench.running() as task:
        assert await task
    assert bench.rollouts.warning == "step 1 was skipped"
    assert "rollcall_skipped_steps_total" in generate_latest(bench.metrics.registry).decode()
    assert bench.metrics.registry.get_sample_value("rollcall_skipped_steps_total", LABELS) == 3


def held_out(every_steps: int) -> EvaluationConfig:
    data = DataConfig((DataSource("held-out.jsonl"),))
    return EvaluationConfig(every_steps, data, prompts=2, samples=2, pass_at=(1, 2))


async def test_weights_are_evaluated_once_rollouts_serve_them() -> None:
    bench = Bench(FakeRank(), FakeRollouts(), algorithm={"max_steps": 4}, evaluation=held_out(2))
    async with bench.running() as task:
        assert await task
    assert bench.rollouts.evaluated == [0, 2, 4]
    found = {step: figures for step, figures in bench.tracking.steps if "eval/pass@1" in figures}
    assert sorted(found) == [0, 2, 4]
    assert found[4] == {"eval/reward/mean": 0.25, "eval/pass@1": 0.25, "eval/pass@2": 0.5}


async def test_training_does_not_wait_for_an_evaluation() -> None:
    bench = Bench(FakeRank(), FakeRollouts(), algorithm={"max_steps": 4}, evaluation=held_out(1))
    bench.rollouts.answers.clear()
    async with bench.running():
        while bench.rank.step < 4:
            await asyncio.sleep(0.001)
    assert bench.rollouts.evaluated == [0], "the others are skipped: one at a time"


async def test_an_evaluation_that_fails_ends_training() -> None:
    bench = Bench(FakeRank(), FakeRollouts(), algorithm={"max_steps": 1}, evaluation=held_out(1))
    bench.rollouts.answers.clear()
    async with bench.running() as task:
        while bench.rank.step < 1:
            await asyncio.sleep(0.001)
        bench.rollouts.error = SpecError("spec.evaluation.data", "a row is broken")
        bench.rollouts.answers.set()
        with pytest.raises(SpecError, match="a row is broken"):
            await task
