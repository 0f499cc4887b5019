"""Leases become samples: batched, continued after a pause, thrown away when revoked."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from rollcall_protocol.wire.ids import Lineage, Version
from rollcall_protocol.wire.partial_responses import PartialResponses, Response
from rollcall_protocol.wire.reward_errors import RewardError, RewardErrorKind
from rollcall_runtime.rollout.generation_worker import (
    FinishedLease,
    GenerationWorker,
    PartialRollouts,
)
from rollcall_runtime.rollout.served_versions import ServedVersions
from rollcall_runtime.worker.errors import SpecError
from tests.unit.rollcall_runtime.rollout.fake_engine import (
    TOKENS,
    FakeEngine,
    lease,
    rollout_metrics,
)
from tests.unit.rollcall_runtime.rollout.function_scorer import FunctionScorer

V0, V1 = Version(Lineage(1, 1), 0), Version(Lineage(1, 1), 1)


class Bench:
    """A generator over a fake engine, with what it delivered."""

    def __init__(self, engine: FakeEngine, *, keep: bool = True, **changes: Any) -> None:
        self.engine, self.finished = engine, list[FinishedLease]()
        self.reported = asyncio.Event()
        self.served, self.metrics = ServedVersions(), rollout_metrics()
        self.served.add(V0)
        values: dict[str, Any] = {
            "engine": engine,
            "reward": FunctionScorer(lambda _, response, row: len(response) / row.get("of", 4)),
            "concurrency": 4,
            "partial": PartialRollouts(0.01, self.reported.set, keep=keep),
            "served": self.served,
            "metrics": self.metrics,
            "done": self.finished.append,
        }
        self.generator = GenerationWorker(**values | changes)

    @asynccontextmanager
    async def running(self) -> Any:
        task = asyncio.create_task(self.generator.run())
        try:
            async with asyncio.timeout(5):
                yield self
        finally:
            self.engine.close()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def engine_called(self) -> None:
        await asyncio.to_thread(self.engine.called.acquire, timeout=5)


async def test_waiting_leases_are_generated_in_one_call() -> None:
    bench = Bench(FakeEngine(blocked=True))
    async with bench.running():
        bench.generator.add(lease(0))
        await bench.engine_called()
        for number in range(1, 7):
            bench.generator.add(lease(number))
        bench.engine.go.set()
        await bench.generator.idle()
    assert [prompts for prompts, _ in bench.engine.calls] == [1, 4, 2]
    assert [done.lease.prompt for done in bench.finished] == list(range(7))


async def test_a_sample_carries_its_tokens_versions_and_reward() -> None:
    bench = Bench(FakeEngine())
    async with bench.running():
        bench.generator.add(lease(0, group_size=2))
        await bench.generator.idle()
    (done,) = bench.finished
    assert done.version == V0
    assert [sample.tokens for sample in done.samples] == [TOKENS] * 2
    assert done.samples[0].versions == (0, 0, 0)
    assert done.samples[0].reward == 0.75
    assert bench.metrics.registry.get_sample_value(
        "rollcall_rollout_reward", bench.metrics.labels
    ) == pytest.approx(0.75)


async def test_the_reward_function_gets_the_row_of_its_prompt() -> None:
    bench = Bench(FakeEngine())
    async with bench.running():
        bench.generator.add(replace(lease(0), row={"of": 3}))
        bench.generator.add(replace(lease(1), row={"of": 6}))
        await bench.generator.idle()
    assert [done.samples[0].reward for done in bench.finished] == [1.0, 0.5]


async def test_a_sample_without_a_reward_goes_out_with_its_error() -> None:
    error = RewardError(0, RewardErrorKind.RAISED, "KeyError: 'answer'", "task.py", 3)
    bench = Bench(FakeEngine(), reward=FunctionScorer(lambda *_: error))
    async with bench.running():
        bench.generator.add(lease(0, group_size=2))
        await bench.generator.idle()
    (done,) = bench.finished
    assert done.reward_errors == (error,)
    assert [(sample.tokens, sample.reward) for sample in done.samples] == [(TOKENS, 0.0)] * 2
    value, labels = bench.metrics.registry.get_sample_value, bench.metrics.labels
    assert value("rollcall_rollout_samples_total", labels) == 0


class SlowScorer:
    """Waits for `go` in each call."""

    def __init__(self) -> None:
        self.called, self.go = asyncio.Event(), asyncio.Event()

    async def score(self, *_: Any) -> list[float]:
        self.called.set()
        await self.go.wait()
        return [1.0]


async def test_leases_are_held_and_reported_while_their_responses_are_scored() -> None:
    scorer = SlowScorer()
    bench = Bench(FakeEngine(), reward=scorer)
    async with bench.running():
        bench.generator.add(lease(0, group_size=1))
        bench.generator.add(lease(1, group_size=1))
        await scorer.called.wait()
        bench.reported.clear()
        await bench.reported.wait()
        assert [held.lease.prompt for held in bench.generator.lease_progress()] == [0, 1]
        assert bench.generator.stuck() == ""
        bench.generator.revoke(lease(0).lease_id)
        scorer.go.set()
        await bench.generator.idle()
    assert [done.lease.prompt for done in bench.finished] == [1]


async def test_what_a_pause_cut_short_is_continued_and_dated_by_its_oldest_token() -> None:
    bench = Bench(FakeEngine(cut_short=1))
    async with bench.running():
        bench.generator.add(lease(0))
        await bench.engine_called()
        bench.served.add(V1)
        bench.engine.load_weights([], version=1)
        await bench.generator.idle()
    (done,) = bench.finished
    assert done.version in {V0, V1}
    assert [partials is None for _, partials in bench.engine.calls] == [True, False]
    assert done.version.number == min(done.samples[0].versions)


async def test_without_partial_rollout_a_lease_is_generated_from_the_beginning() -> None:
    bench = Bench(FakeEngine(cut_short=1), keep=False)
    async with bench.running():
        bench.generator.add(lease(0))
        await bench.generator.idle()
    assert [partials for _, partials in bench.engine.calls] == [None, None]
    assert len(bench.finished) == 1


async def test_a_revoked_lease_is_thrown_away_whether_it_waits_or_runs() -> None:
    bench = Bench(FakeEngine(blocked=True), concurrency=1)
    async with bench.running():
        for number in range(3):
            bench.generator.add(lease(number))
        await bench.engine_called()
        bench.generator.revoke(lease(0).lease_id)
        bench.generator.revoke(lease(1).lease_id)
        bench.engine.go.set()
        await bench.generator.idle()
    assert [done.lease.prompt for done in bench.finished] == [2]


async def test_waiting_leases_are_returned_first_then_all() -> None:
    bench = Bench(FakeEngine(blocked=True), concurrency=1)
    async with bench.running():
        for number in range(3):
            bench.generator.add(lease(number))
        await bench.engine_called()
        assert [s.lease for s in bench.generator.return_waiting()] == [lease(1), lease(2)]
        assert [s.lease for s in bench.generator.return_all()] == [lease(0)]
        bench.engine.go.set()
        await bench.generator.idle()
    assert not bench.finished


async def test_progress_of_leases_is_known_during_generation() -> None:
    bench = Bench(FakeEngine(blocked=True, partials=1), concurrency=1)
    async with bench.running():
        for number in range(2):
            bench.generator.add(lease(number))
        await bench.reported.wait()
        running, waiting = bench.generator.lease_progress()
        assert (running.lease, running.version) == (lease(0), V0)
        assert running.group == (Response((3,), (-1.0,), (0,)),) * 2
        assert (waiting.lease, waiting.version, waiting.group) == (lease(1), None, ())
        bench.engine.go.set()
        await bench.generator.idle()
        assert bench.generator.lease_progress() == []
    assert bench.engine.wanted == [True, True]


async def test_without_partial_rollout_reports_have_no_tokens() -> None:
    bench = Bench(FakeEngine(blocked=True, partials=1), keep=False)
    async with bench.running():
        bench.generator.add(
            lease(0, begun=PartialResponses(V0, (Response((3,), (-0.5,), (0,)),) * 2))
        )
        await bench.reported.wait()
        (running,) = bench.generator.lease_progress()
        assert (running.version, running.group) == (None, ())
    assert bench.engine.calls == [(1, None)], "generated from the beginning"


async def test_a_lease_goes_on_where_another_rollout_stopped() -> None:
    elsewhere = Version(Lineage(1, 0), 0)
    finished = Response(TOKENS, (-0.5,) * 3, (0,) * 3, finished=True)
    bench = Bench(FakeEngine())
    async with bench.running():
        begun = PartialResponses(elsewhere, (Response((3,), (-0.5,), (0,)), finished))
        bench.generator.add(lease(0, begun=begun))
        await bench.generator.idle()
    (done,) = bench.finished
    assert done.version == elsewhere, "of its oldest token, on whichever rollout"
    assert [sample.tokens for sample in done.samples] == [TOKENS] * 2
    assert [s.logprobs for s in done.samples] == [(-0.5, -1.0, -1.0), (-0.5,) * 3]
    value, labels = bench.metrics.registry.get_sample_value, bench.metrics.labels
    assert value("rollcall_tokens_total", labels) == 2, "sampled here"
    assert value("rollcall_rollout_samples_total", labels) == 1


async def test_a_continued_response_is_sampled_with_another_seed() -> None:
    continued, redrawn = Bench(FakeEngine(cut_short=1)), Bench(FakeEngine(cut_short=1), keep=False)
    for bench in (continued, redrawn):
        async with bench.running():
            bench.generator.add(lease(5))
            await bench.generator.idle()
    assert len(set(continued.engine.seeds)) == 2
    assert redrawn.engine.seeds == [5, 5]


async def test_the_engines_callback_returns_false_once_no_lease_is_wanted() -> None:
    bench = Bench(FakeEngine(blocked=True, partials=1))
    async with bench.running():
        bench.generator.add(lease(0))
        await bench.engine_called()
        bench.generator.add(lease(1))
        bench.generator.revoke(lease(0).lease_id)
        running = bench.engine.wanted.copy()
        bench.generator.return_all()
        bench.engine.go.set()
        await bench.generator.idle()
    assert running == [True]
    assert not bench.finished


async def test_a_prompt_that_the_model_cannot_take_is_the_specs_fault() -> None:
    bench = Bench(FakeEngine())
    bench.engine.error = ValueError("unknown token 99")
    bench.generator.add(lease(7))
    with pytest.raises(SpecError, match=r"spec.data.prompts: .* 7 .* unknown token 99"):
        await bench.generator.run()


async def test_a_failing_engine_ends_the_work() -> None:
    bench = Bench(FakeEngine())
    bench.engine.error = RuntimeError("out of memory")
    bench.generator.add(lease(0))
    with pytest.raises(RuntimeError, match="out of memory"):
        await bench.generator.run()


def test_a_number_means_the_version_that_served_since_the_work_began() -> None:
    served = ServedVersions()
    old, new = Version(Lineage(1, 1), 5), Version(Lineage(1, 2), 5)
    served.add(old)
    before = served.now()
    assert served.oldest([5], since=before) == old
    served.add(new)
    assert served.oldest([5], since=served.now()) == new
    assert served.oldest([5], since=before) == old, "when in doubt it is the older one"
    with pytest.raises(ValueError, match="empty"):
        served.oldest([6], since=before)


async def test_after_a_restart_of_the_trainer_the_same_number_is_of_the_new_lineage() -> None:
    bench = Bench(FakeEngine())
    restarted = Version(Lineage(1, 2), 0)
    async with bench.running():
        bench.generator.add(lease(0))
        await bench.generator.idle()
        bench.served.add(restarted)
        bench.generator.add(lease(1))
        await bench.generator.idle()
    assert [done.version for done in bench.finished] == [V0, restarted]
