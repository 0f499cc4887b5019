"""Responses outlive rollouts that are killed, drain, fail, are busy, or serve later."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from rollcall_protocol.wire.generation import GenerationRequest, NewTokens
from rollcall_protocol.wire.ids import Lineage, Version
from rollcall_protocol.wire.serving_rollouts import ServingRollouts
from rollcall_runtime.generation import continued_generation, rollout_client, routing
from rollcall_runtime.generation.continued_generation import NoRolloutError
from tests.unit.rollcall_runtime.generation.generating import generating, pieces, sampled
from tests.unit.rollcall_runtime.rollout.counting_rollouts import (
    CountingEngine,
    counting_rollout,
    expected,
    tokens_each,
)

PROMPTS = [(3 + number, 4, 5) for number in range(16)]
COUNT = 24


async def test_responses_go_on_from_their_tokens_when_their_rollout_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Rollouts and who asks them share one event loop here: a busy machine is slow to connect.
    monkeypatch.setattr(rollout_client, "CONNECT_SECONDS", 60.0)
    async with (
        counting_rollout("cpu-0", pause=0.005) as lost,
        counting_rollout("cpu-1", pause=0.005) as other,
        generating(lost, other) as generation,
    ):
        running = [asyncio.create_task(sampled(generation, each, COUNT)) for each in PROMPTS]
        while lost.engine.sampled < 8 * 5:
            await asyncio.sleep(0.001)
        await lost.kill()
        assert await asyncio.gather(*running) == [expected(each, COUNT) for each in PROMPTS]
        continued = [request for request in other.engine.requests if request.begun.tokens]
        assert len(continued) == 8
        assert lost.engine.sampled < 8 * COUNT


async def test_a_rollout_that_drains_gets_no_more_and_its_requests_end_elsewhere() -> None:
    async with (
        counting_rollout("cpu-0", pause=0.005) as drained,
        counting_rollout("cpu-1", pause=0.005) as other,
        generating(drained, other) as generation,
    ):
        running = [asyncio.create_task(sampled(generation, each, COUNT)) for each in PROMPTS[:8]]
        while drained.engine.sampled < 8:
            await asyncio.sleep(0.001)
        drained.draining = True
        drained.endpoint.end()  # as after the drain's bound
        running += [asyncio.create_task(sampled(generation, each, COUNT)) for each in PROMPTS[8:]]
        assert await asyncio.gather(*running) == [expected(each, COUNT) for each in PROMPTS]
        assert len(other.engine.requests) == 16


async def test_rollouts_that_are_lost_after_a_token_each_end_no_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(continued_generation, "MOST_MOVES", 3)
    monkeypatch.setattr(routing, "AVOID_SECONDS", 0.0)
    monkeypatch.setattr(CountingEngine, "generate", tokens_each(1, pods=8))
    moves: list[None] = []
    async with (
        counting_rollout() as rollout,
        generating(rollout, moved=lambda: moves.append(None)) as generation,
    ):
        assert await sampled(generation, (3,), 8) == expected((3,), 8)
    assert len(moves) == 7


async def test_a_response_of_two_rollouts_is_as_old_as_its_oldest_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CountingEngine, "generate", tokens_each(2, pods=1))
    async with (
        counting_rollout("cpu-0", number=2) as lost,
        counting_rollout("cpu-1", number=5) as other,
        generating(lost, other) as generation,
    ):
        whole = (await pieces(generation, (3,), 6))[-1]
    assert whole.response.versions == (2, 2, 5, 5, 5, 5)
    assert whole.oldest == Version(Lineage(1, 1), 2)


async def test_requests_wait_while_no_rollout_serves() -> None:
    async with counting_rollout() as rollout, generating() as generation:
        running = asyncio.create_task(sampled(generation, (3, 4, 5), COUNT))
        await asyncio.sleep(0.02)
        assert not running.done()
        generation.replace(ServingRollouts((rollout.serving,)))
        assert await asyncio.wait_for(running, 5) == expected((3, 4, 5), COUNT)


async def test_requests_wait_for_rollouts_that_have_all_they_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(continued_generation, "MOST_MOVES", 2)
    monkeypatch.setattr(routing, "AVOID_SECONDS", 0.01)
    async with (
        counting_rollout(pause=0.01, at_once=1) as rollout,
        generating(rollout) as generation,
    ):
        running = [sampled(generation, each, 5) for each in PROMPTS[:4]]
        assert await asyncio.gather(*running) == [expected(each, 5) for each in PROMPTS[:4]]


async def test_a_rollout_that_says_nothing_new_is_no_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(continued_generation, "MOST_MOVES", 3)
    monkeypatch.setattr(routing, "AVOID_SECONDS", 0.0)

    async def empty(
        engine: CountingEngine, asked: GenerationRequest
    ) -> AsyncGenerator[NewTokens, None]:
        engine.requests.append(asked)
        yield NewTokens((), (), ())
        raise RuntimeError("no weights")

    monkeypatch.setattr(CountingEngine, "generate", empty)
    async with counting_rollout() as rollout, generating(rollout) as generation:
        with pytest.raises(NoRolloutError, match="no weights"):
            await sampled(generation, (3,), COUNT)
        assert len(rollout.engine.requests) == 3


async def test_a_response_of_a_schema_is_not_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    """What continues it would begin its JSON anew."""
    monkeypatch.setattr(CountingEngine, "constrains", True)
    monkeypatch.setattr(CountingEngine, "generate", tokens_each(3, pods=1))
    async with (
        counting_rollout("cpu-0") as one,
        counting_rollout("cpu-1") as other,
        generating(one, other) as generation,
    ):
        with pytest.raises(NoRolloutError, match="send the request again"):
            await pieces(generation, PROMPTS[0], COUNT, json_schema="{}")
        asked = [*one.engine.requests, *other.engine.requests]
        assert len(asked) == 1
        assert len(await pieces(generation, PROMPTS[0], COUNT, json_schema="{}")) == COUNT


async def test_likely_tokens_come_with_each_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CountingEngine, "gives_top", True)
    async with counting_rollout() as rollout, generating(rollout) as generation:
        found = await pieces(generation, PROMPTS[0], 3, top_logprobs=2)
    tokens = expected(PROMPTS[0], 3)
    assert [one.top for one in found] == [(((t, -0.5), (t - 1, -1.5)),) for t in tokens]
