"""Leases become samples: each response by itself, continued after an abort, ended when revoked."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_protocol.wire.ids import Lineage, Version
from rollcall_protocol.wire.partial_responses import PartialResponses, Response
from rollcall_protocol.wire.reward_errors import RewardError, RewardErrorKind
from rollcall_runtime.rollout import generation_worker
from rollcall_runtime.rollout.generation_worker import (
    FinishedLease,
    GenerationWorker,
    PartialRollouts,
)
from rollcall_runtime.rollout.inference_engine import GenerationRequest, NewTokens, PauseMode
from rollcall_runtime.rollout.served_versions import ServedVersions
from rollcall_runtime.tasks.reward_process import SummedReward
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
        with self.served.changing_to(V0):
            pass
        values: dict[str, Any] = {
            "engine": engine,
            "reward": FunctionScorer(lambda _, response, row: len(response) / row.get("of", 4)),
            "concurrency": 4,
            "sampling": SamplingConfig(temperature=0.5, column="own"),
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
            await self.engine.close()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_each_prompt_is_sampled_as_the_job_and_its_row_say() -> None:
    bench = Bench(FakeEngine())
    async with bench.running():
        bench.generator.add(lease(0, group_size=1))
        own = {"own": {"maxTokens": 7, "stop": ["."]}}
        bench.generator.add(replace(lease(1, group_size=1), row=own))
        await bench.generator.idle()
    assert [request.sampling for request in bench.engine.requests] == [
        SamplingConfig(temperature=0.5, column="own"),
        SamplingConfig(max_tokens=7, temperature=0.5, stop=(".",), column="own"),
    ]


async def test_leases_that_wait_begin_when_others_have_been_sampled() -> None:
    bench = Bench(FakeEngine(blocked=True))
    async with bench.running():
        for number in range(7):
            bench.generator.add(lease(number))
        await bench.engine.requested(8)
        await asyncio.sleep(0.02)
        begun = {request.seed for request in bench.engine.requests}
        assert {0, 1, 2, 3} <= begun
        assert len(begun) == 8, "two responses of four leases"
        bench.engine.go.set()
        await bench.generator.idle()
    assert [done.lease.prompt for done in bench.finished] == list(range(7))


class OneSlowEngine(FakeEngine):
    """One response waits for `go`, the one of the seed 0; all others do not."""

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[NewTokens, None]:
        if request.seed == 0:
            await self.go.wait()
        yield NewTokens(TOKENS, (-1.0,) * 3, (0,) * 3, finished=True)


async def test_a_slow_response_holds_no_other_lease_up() -> None:
    bench = Bench(OneSlowEngine(blocked=True), concurrency=2)
    async with bench.running():
        for number in range(6):
            bench.generator.add(lease(number))
        while len(bench.finished) < 5:
            await asyncio.sleep(0.01)
        assert [done.lease.prompt for done in bench.finished] == [1, 2, 3, 4, 5]
        (slow,) = bench.generator.lease_progress()
        assert [response.finished for response in slow.group] == [False, True]
        bench.engine.go.set()
        await bench.generator.idle()
    assert bench.finished[-1].lease.prompt == 0


async def test_the_samples_of_a_prompt_have_seeds_of_their_own() -> None:
    bench, other = Bench(FakeEngine()), Bench(FakeEngine())
    for each in (bench, other):
        async with each.running():
            each.generator.add(lease(5, group_size=16))
            await each.generator.idle()
    seeds = [request.seed for request in bench.engine.requests]
    assert len(set(seeds)) == 16
    assert seeds == [request.seed for request in other.engine.requests], "on any rollout"


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


async def test_a_sample_carries_the_parts_of_its_reward_and_the_seconds_that_it_took() -> None:
    scorer = FunctionScorer(lambda *_: SummedReward.of(0.75, [1.0, 0.5]))
    bench = Bench(FakeEngine(blocked=True), reward=scorer)
    async with bench.running():
        bench.generator.add(lease(0, group_size=1))
        await bench.engine.requested(1)
        await asyncio.sleep(0.02)
        bench.engine.go.set()
        await bench.generator.idle()
    (sample,) = bench.finished[0].samples
    assert (sample.reward, sample.parts) == (0.75, (1.0, 0.5))
    assert type(sample.reward) is float
    assert 0.02 <= sample.seconds < 5


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


async def test_what_an_update_aborted_is_continued_and_dated_by_its_oldest_token() -> None:
    bench = Bench(FakeEngine(cut_short=1, blocked=True))
    async with bench.running():
        bench.generator.add(lease(0, group_size=1))
        await bench.engine.requested(2)
        with bench.served.changing_to(V1):
            await bench.engine.update_weights([], version=1, running=PauseMode.ABORT, seconds=1)
        bench.engine.go.set()
        await bench.generator.idle()
    (done,) = bench.finished
    assert [request.begun.tokens for request in bench.engine.requests] == [(), (3,)]
    assert done.samples[0].versions == (0, 1, 1)
    assert done.version == V0


async def test_a_token_of_the_former_version_is_known_while_the_next_one_is_loaded() -> None:
    bench = Bench(FakeEngine())
    async with bench.running():
        with bench.served.changing_to(V1):
            bench.generator.add(lease(0))
            await bench.generator.idle()
    (done,) = bench.finished
    assert done.version == V0


async def test_without_partial_rollout_a_response_is_sampled_from_the_beginning() -> None:
    bench = Bench(FakeEngine(cut_short=1), keep=False)
    async with bench.running():
        bench.generator.add(lease(0, group_size=1))
        await bench.generator.idle()
    assert [request.begun for request in bench.engine.requests] == [Response(), Response()]
    assert len({request.seed for request in bench.engine.requests}) == 1, "the same one, or short"
    assert [sample.tokens for sample in bench.finished[0].samples] == [TOKENS]


async def test_a_revoked_lease_is_ended_whether_it_waits_or_runs() -> None:
    bench = Bench(FakeEngine(blocked=True), concurrency=1)
    async with bench.running():
        for number in range(3):
            bench.generator.add(lease(number))
        await bench.engine.requested(2)
        bench.generator.revoke(lease(0).lease_id)
        bench.generator.revoke(lease(1).lease_id)
        await bench.engine.requested(4)
        assert bench.engine.ended == 2, "at once"
        bench.engine.go.set()
        await bench.generator.idle()
    assert [done.lease.prompt for done in bench.finished] == [2]


async def test_waiting_leases_are_returned_first_then_all() -> None:
    bench = Bench(FakeEngine(blocked=True), concurrency=1)
    async with bench.running():
        for number in range(3):
            bench.generator.add(lease(number))
        await bench.engine.requested()
        assert [s.lease for s in bench.generator.return_waiting()] == [lease(1), lease(2)]
        assert [s.lease for s in bench.generator.return_all()] == [lease(0)]
        bench.engine.go.set()
        await bench.generator.idle()
    assert not bench.finished


async def test_progress_of_leases_is_known_during_generation() -> None:
    bench = Bench(FakeEngine(blocked=True, early=1), concurrency=1)
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


async def test_nothing_is_reported_while_no_token_comes() -> None:
    bench = Bench(FakeEngine(blocked=True, early=1), concurrency=1)
    async with bench.running():
        bench.generator.add(lease(0))
        await bench.reported.wait()
        bench.reported.clear()
        await asyncio.sleep(0.1)
        assert not bench.reported.is_set()


async def test_without_partial_rollout_reports_have_no_tokens() -> None:
    bench = Bench(FakeEngine(blocked=True, early=1), keep=False)
    async with bench.running():
        bench.generator.add(
            lease(0, begun=PartialResponses(V0, (Response((3,), (-0.5,), (0,)),) * 2))
        )
        await bench.reported.wait()
        (running,) = bench.generator.lease_progress()
        assert (running.version, running.group) == (None, ())
    begun = [request.begun for request in bench.engine.requests]
    assert begun == [Response()] * 2, "generated from the beginning"


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


async def test_an_engine_that_has_failed_ends_the_work() -> None:
    bench = Bench(FakeEngine(blocked=True))
    bench.engine.failed = "its process was killed"
    bench.generator.add(lease(0))
    with pytest.raises(RuntimeError, match="engine failed: its process was killed"):
        await bench.generator.run()


async def test_sampling_without_a_token_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation_worker, "STUCK_SECONDS", 0.05)
    bench = Bench(FakeEngine(blocked=True))
    async with bench.running():
        await asyncio.sleep(0.1)
        assert bench.generator.stuck() == "", "it has nothing to sample"
        bench.generator.add(lease(0))
        await bench.engine.requested()
        await asyncio.sleep(0.1)
        assert "no token was sampled" in bench.generator.stuck()
        bench.engine.go.set()
        await bench.generator.idle()
        assert bench.generator.stuck() == ""


async def test_a_prompt_that_the_model_cannot_take_is_the_specs_fault() -> None:
    bench = Bench(FakeEngine())
    bench.engine.error = ValueError("unknown token 99")
    bench.generator.add(lease(7))
    with pytest.raises(SpecError, match=r"spec.data.prompts: prompt 7 .* unknown token 99"):
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
    with served.changing_to(old):
        pass
    before = served.now()
    assert served.oldest([5], since=before) == old
    with served.changing_to(new):
        pass
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
        with bench.served.changing_to(restarted):
            pass
        bench.generator.add(lease(1))
        await bench.generator.idle()
    assert [done.version for done in bench.finished] == [V0, restarted]
