"""The rollout's endpoint for the front: who passes, what is streamed, and how requests end."""

import asyncio
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from rollcall_protocol.pod_contract import GENERATE_ROUTE, TICKET_HEADER
from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_protocol.wire.generation import MAX_SCHEMA, GenerationLine, GenerationRequest
from rollcall_protocol.wire.ids import Lineage, Version
from rollcall_protocol.wire.json_codec import decode, parse, to_json
from rollcall_protocol.wire.partial_responses import Response
from rollcall_runtime.rollout import generation_endpoint
from rollcall_runtime.sync.weights.tickets import sign_ticket
from tests.unit.rollcall_runtime.rollout.counting_rollouts import (
    KEY,
    CountingEngine,
    CountingRollout,
    counting_rollout,
    expected,
)

PROMPT = (5, 6, 7)
REQUEST = GenerationRequest(PROMPT, SamplingConfig(max_tokens=6), seed=1)
OF_TOP = '"top_logprobs":'
BEGUN = Response(expected(PROMPT, 2), (-1.0, -1.0), (0, 0))


async def post(
    rollout: CountingRollout, body: Any = REQUEST, *, ticket: str = ""
) -> tuple[int, list[GenerationLine]]:
    headers = {TICKET_HEADER: ticket or sign_ticket(KEY, GENERATE_ROUTE)}
    text = body if isinstance(body, str) else to_json(body)
    async with (
        aiohttp.ClientSession() as session,
        session.post(rollout.url, data=text, headers=headers) as answer,
    ):
        lines = (await answer.text()).splitlines()
        if answer.status != 200:
            return answer.status, []
        return 200, [decode(GenerationLine, parse(line)) for line in lines if line]


def tokens_of(lines: list[GenerationLine]) -> tuple[int, ...]:
    return tuple(token for line in lines if line.new for token in line.new.tokens)


async def test_tokens_come_with_their_versions_and_the_oldest_one() -> None:
    async with counting_rollout(number=3) as rollout:
        status, lines = await post(rollout)
    assert status == 200
    assert tokens_of(lines) == expected(PROMPT, 6)
    assert lines[-1].new is not None
    assert lines[-1].new.finished
    assert {line.oldest for line in lines} == {Version(Lineage(1, 1), 3)}


async def test_what_was_begun_elsewhere_is_continued() -> None:
    async with counting_rollout() as rollout:
        _, lines = await post(rollout, replace(REQUEST, begun=BEGUN))
    assert tokens_of(lines) == expected(PROMPT, 6)[2:]


async def test_the_ticket_of_a_version_does_not_open_it() -> None:
    async with counting_rollout() as rollout:
        assert (await post(rollout, ticket=sign_ticket(KEY, "1@1.1")))[0] == 401
        assert not rollout.engine.requests


@pytest.mark.parametrize(
    "body",
    [
        "{}",
        "not JSON",
        to_json(REQUEST).replace('"temperature":1.0', '"temperature":-1.0'),
        replace(REQUEST, seed=-1),
        replace(REQUEST, prompt=()),
        replace(REQUEST, prompt=(104,)),
        replace(REQUEST, begun=Response((104,), (-1.0,), (0,))),
        replace(REQUEST, begun=Response((3,), (float("inf"),), (0,))),
        replace(REQUEST, begun=Response((3,), (-1.0,), (-7,))),
        replace(REQUEST, prompt=(3,) * 257),
    ],
)
async def test_what_the_model_cannot_take_is_refused_before_the_engine(body: Any) -> None:
    async with counting_rollout() as rollout:
        assert (await post(rollout, body))[0] == 400
        assert not rollout.engine.requests


async def test_a_body_beyond_the_models_positions_is_not_read() -> None:
    async with counting_rollout() as rollout:
        assert (await post(rollout, "1" * 200_000))[0] == 413


async def test_a_draining_rollout_refuses_and_finishes_what_runs() -> None:
    async with counting_rollout(pause=0.01) as rollout:
        running = asyncio.create_task(post(rollout))
        while not rollout.engine.requests:
            await asyncio.sleep(0.001)
        rollout.draining = True
        assert (await post(rollout))[0] == 503
        idle = asyncio.create_task(rollout.endpoint.idle())
        await asyncio.sleep(0.005)
        assert not idle.done()
        assert tokens_of((await running)[1]) == expected(PROMPT, 6)
        await asyncio.wait_for(idle, 5)


@pytest.mark.parametrize(
    ("more", "able"), [({"json_schema": "{}"}, "constrains"), ({"top_logprobs": 2}, "gives_top")]
)
async def test_what_the_engine_cannot_do_is_refused(
    more: dict[str, Any], able: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with counting_rollout() as rollout:
        assert (await post(rollout, replace(REQUEST, **more)))[0] == 400
        assert rollout.engine.requests == []
        monkeypatch.setattr(type(rollout.engine), able, True)
        assert (await post(rollout, replace(REQUEST, **more)))[0] == 200


async def test_the_longest_schema_is_taken_and_no_longer_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CountingEngine, "constrains", True)
    longest = replace(REQUEST, json_schema='"' * MAX_SCHEMA)  # twice as long as JSON
    async with counting_rollout() as rollout:
        assert (await post(rollout, longest))[0] == 200
        longer = to_json(longest).replace('"json_schema":"', '"json_schema":"x')
        assert (await post(rollout, longer))[0] == 400
        assert (await post(rollout, to_json(REQUEST).replace(OF_TOP, f"{OF_TOP}21")))[0] == 400


async def test_after_the_drains_bound_requests_are_cut_off() -> None:
    async with counting_rollout(pause=60) as rollout:
        running = asyncio.create_task(post(rollout))
        while not rollout.engine.requests:
            await asyncio.sleep(0.001)
        rollout.endpoint.end()
        with pytest.raises(aiohttp.ClientError):
            await asyncio.wait_for(running, 5)
        await asyncio.wait_for(rollout.endpoint.idle(), 5)
        assert rollout.engine.running == 0


async def test_more_requests_than_allowed_are_refused() -> None:
    async with counting_rollout(pause=60, at_once=1) as rollout:
        running = asyncio.create_task(post(rollout))
        while not rollout.engine.requests:
            await asyncio.sleep(0.001)
        assert (await post(rollout))[0] == 429
        running.cancel()


async def test_the_engine_stops_when_the_front_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation_endpoint, "HEARTBEAT_SECONDS", 0.01)
    async with counting_rollout(pause=60) as rollout:
        running = asyncio.create_task(post(rollout))
        while not rollout.engine.requests:
            await asyncio.sleep(0.001)
        running.cancel()
        await asyncio.wait_for(rollout.endpoint.idle(), 5)
        assert rollout.engine.running == 0


async def test_empty_lines_show_that_the_rollout_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation_endpoint, "HEARTBEAT_SECONDS", 0.005)
    async with counting_rollout(pause=0.03) as rollout, aiohttp.ClientSession() as session:
        headers = {TICKET_HEADER: sign_ticket(KEY, GENERATE_ROUTE)}
        url = rollout.url
        async with session.post(url, data=to_json(REQUEST), headers=headers) as answer:
            lines = (await answer.text()).split("\n")
    assert lines.count("") > 6


@pytest.mark.parametrize(("error", "final"), [(ValueError("x"), True), (RuntimeError("x"), False)])
async def test_what_the_engine_raises_is_the_last_line(error: Exception, final: bool) -> None:
    async with counting_rollout() as rollout:
        rollout.engine.error = error
        status, lines = await post(rollout)
    assert status == 200
    assert (lines[-1].error, lines[-1].final) == ("x", final)
