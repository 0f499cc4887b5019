"""Leases of a job with an environment: turns, rewards, failures, and what another rollout takes."""

import asyncio
from typing import Any

import pytest

from rollcall_protocol.wire.partial_responses import NOT_SAMPLED, PartialResponses, Response
from rollcall_protocol.wire.reward_errors import RewardError, RewardErrorKind
from rollcall_runtime.rollout import generation_worker
from rollcall_runtime.tasks.environments.environment_process import EnvironmentFailedError
from tests.unit.rollcall_runtime.rollout.echo_environment import Echo, conversations
from tests.unit.rollcall_runtime.rollout.fake_engine import TOKENS, FakeEngine, lease
from tests.unit.rollcall_runtime.rollout.function_scorer import FunctionScorer
from tests.unit.rollcall_runtime.rollout.test_generation_worker import V0, Bench

NO_END = 99
TWO_TURNS = (*TOKENS, TOKENS[0], *TOKENS)


def bench(echo: Echo, engine: FakeEngine | None = None, **changes: Any) -> Bench:
    """A worker for responses of two turns."""
    talk = conversations(echo, max_turns=2)
    return Bench(engine or FakeEngine(), conversations=talk, **changes)


async def test_a_sample_has_its_turns_and_what_was_given_between_them() -> None:
    scorer = FunctionScorer(lambda *_: 1.0)
    made = bench(Echo(end=NO_END), reward=scorer)
    async with made.running():
        made.generator.add(lease(0))
        await made.generator.idle()
    (done,) = made.finished
    assert [sample.tokens for sample in done.samples] == [TWO_TURNS] * 2
    assert done.samples[0].versions == (0, 0, 0, NOT_SAMPLED, 0, 0, 0)
    assert done.samples[0].logprobs[3] == 0.0
    assert done.version == V0
    assert scorer.environment_rewards == [1.0, 1.0], "0.5 for each turn"
    value, labels = made.metrics.registry.get_sample_value, made.metrics.labels
    assert value("rollcall_tokens_total", labels) == 12, "what was given was not sampled"


async def test_each_turn_is_a_request_behind_what_came_before() -> None:
    made = bench(Echo(end=NO_END))
    async with made.running():
        made.generator.add(lease(0, group_size=1))
        await made.generator.idle()
    first, second = made.engine.requests
    assert second.prompt == (*first.prompt, *TOKENS, TOKENS[0])
    assert first.begun == second.begun == Response()


async def test_a_turn_that_an_update_cut_short_goes_on_where_it_was() -> None:
    made = bench(Echo(end=NO_END), FakeEngine(cut_short=1))
    async with made.running():
        made.generator.add(lease(0, group_size=1))
        await made.generator.idle()
    assert [request.begun.tokens for request in made.engine.requests] == [(), TOKENS[:1], ()]
    assert made.finished[0].samples[0].tokens == TWO_TURNS


async def test_another_rollout_samples_the_turn_again_that_had_no_answer() -> None:
    turn = Response((*TOKENS, TOKENS[0]), (-1.0, -1.0, -1.0, 0.0), (0, 0, 0, NOT_SAMPLED))
    begun = Response((*turn.tokens, 7), (*turn.logprobs, -0.5), (*turn.versions, 0))
    made = bench(Echo(end=NO_END))
    async with made.running():
        made.generator.add(lease(0, group_size=1, begun=PartialResponses(V0, (begun,))))
        await made.generator.idle()
    (request,) = made.engine.requests
    assert request.prompt == (*lease(0).tokens, *turn.tokens)
    assert made.finished[0].samples[0].tokens == TWO_TURNS
    value, labels = made.metrics.registry.get_sample_value, made.metrics.labels
    assert value("rollcall_tokens_total", labels) == 3, "sampled here"


async def test_a_response_is_not_reported_as_finished_before_its_last_turn() -> None:
    echo = Echo(end=NO_END)
    echo.go.clear()
    made = bench(echo)
    async with made.running():
        made.generator.add(lease(0, group_size=1))
        while len(echo.calls) < 2:
            await made.reported.wait()
            await asyncio.sleep(0.01)
        (held,) = made.generator.lease_progress()
        assert [(r.tokens, r.finished) for r in held.group] == [(TOKENS, False)]
        made.reported.clear()
        await made.reported.wait()  # the lease is kept while an environment is waited for
        echo.go.set()
        await made.generator.idle()


async def test_waiting_for_an_environment_is_not_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation_worker, "STUCK_SECONDS", 0.05)
    echo = Echo(end=NO_END)
    echo.go.clear()
    made = bench(echo)
    async with made.running():
        made.generator.add(lease(0, group_size=1))
        await asyncio.sleep(0.2)
        assert made.generator.stuck() == ""
        echo.go.set()
        await made.generator.idle()


async def test_a_sample_whose_environment_fails_goes_out_with_its_error() -> None:
    failed = EnvironmentFailedError(RewardErrorKind.RAISED, "KeyError: 3", "games.py", 4)
    made = bench(Echo(error=failed))
    async with made.running():
        made.generator.add(lease(0))
        await made.generator.idle()
    (done,) = made.finished
    first = RewardError(0, RewardErrorKind.RAISED, "KeyError: 3", "games.py", 4, environment=True)
    assert done.reward_errors[0] == first
    assert [sample.reward for sample in done.samples] == [0.0, 0.0]
    assert [sample.tokens for sample in done.samples] == [TOKENS] * 2


async def test_an_environment_that_fails_before_the_first_token_fails_its_sample_alone() -> None:
    echo = Echo(lost=range(3))  # all attempts of the first sample
    made = bench(echo)
    async with made.running():
        made.generator.add(lease(0, group_size=1))
        made.generator.add(lease(1, group_size=1))
        await made.generator.idle()
    errors = {done.lease.prompt: len(done.reward_errors) for done in made.finished}
    assert sum(errors.values()) == 1, errors
    assert {sample.tokens for done in made.finished for sample in done.samples} == {(), TOKENS}


async def test_environments_are_forgotten_when_their_samples_end_or_are_revoked() -> None:
    echo = Echo(end=NO_END)
    made = bench(echo, FakeEngine(blocked=True))
    async with made.running():
        made.generator.add(lease(0))
        made.generator.add(lease(1))
        await made.engine.requested(4)
        assert len(echo.held) == 4
        made.generator.revoke(lease(0).lease_id)
        made.engine.go.set()
        await made.generator.idle()
    assert not echo.held
