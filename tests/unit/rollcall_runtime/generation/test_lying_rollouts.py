"""A rollout that lies, or talks without end, costs its requests a move to another."""

import asyncio
import math
import time
from typing import Any

import pytest
from aiohttp import web

from rollcall_protocol.pod_contract import GENERATE_ROUTE
from rollcall_protocol.wire.bounded_lines import LineBounds
from rollcall_protocol.wire.generation import GenerationLine, NewTokens
from rollcall_protocol.wire.ids import Lineage, Version
from rollcall_protocol.wire.json_codec import to_json
from rollcall_protocol.wire.serving_rollouts import ServingRollout, ServingRollouts
from rollcall_runtime.generation import continued_generation, rollout_client, routing
from rollcall_runtime.generation.continued_generation import NoRolloutError
from rollcall_runtime.generation.rollout_client import UnanswerableError
from rollcall_runtime.generation.routing import BLOCK
from tests.unit.rollcall_runtime.generation.generating import generating, pieces, sampled
from tests.unit.rollcall_runtime.generation.lying_rollouts import liar, rollout
from tests.unit.rollcall_runtime.rollout.counting_rollouts import (
    POSITIONS,
    VOCABULARY,
    CountingEngine,
    CountingRollout,
    counting_rollout,
    expected,
)

PROMPT, COUNT = (3, 4, 5), 8
OLDEST = Version(Lineage(1, 1), 0)


def line(*tokens: int, logprob: float = -0.5, version: int = 0, all_versions: int = 0) -> bytes:
    count = len(tokens)
    new = NewTokens(
        tokens, (logprob,) * count, (version,) * count, all_versions=(0,) * all_versions
    )
    return f"{to_json(GenerationLine(new, OLDEST))}\n".encode()


async def answer_beside(
    false: ServingRollout, honest: CountingRollout, prompt: tuple[int, ...] = PROMPT
) -> None:
    """A request that goes to the liar first is answered by the honest rollout."""
    async with generating() as generation:
        generation.replace(ServingRollouts((false, honest.serving)))
        assert await sampled(generation, prompt, COUNT) == expected(prompt, COUNT)


@pytest.mark.parametrize(
    "lie",
    [
        line(VOCABULARY),
        line(-1),
        line(3, logprob=math.nan),
        line(3, logprob=5.0),
        line(3, version=-1),
        line(3, all_versions=9),
        line(*(3,) * (POSITIONS + 1)),
        f"{to_json(GenerationLine(NewTokens((3,), (-0.5,), (0,))))}\n".encode(),
    ],
    ids=["vocabulary", "negative", "nan", "logprob", "version", "versions", "length", "oldest"],
)
async def test_what_no_model_samples_is_not_believed(lie: bytes) -> None:
    async with liar(lie) as false, counting_rollout() as honest:
        await answer_beside(false, honest)
        (asked,) = honest.engine.requests
        assert asked.begun.tokens == (), "nothing of the lie is continued"


@pytest.mark.parametrize(
    ("top", "asked"),
    [
        ((), 2),
        ((((3, -1.0),),), 0),
        ((((3, -1.0), (4, -1.5)),), 1),
        ((((VOCABULARY, -1.0),),), 1),
        ((((3, math.nan),),), 1),
        ((((3, 1.0),),), 1),
        ((((3, -math.inf),),), 1),
    ],
)
async def test_likely_tokens_that_were_not_asked_for_or_cannot_be_are_not_believed(
    top: Any, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CountingEngine, "gives_top", True)
    new = NewTokens((3,), (-0.5,), (0,), top=top)
    lie = f"{to_json(GenerationLine(new, OLDEST))}\n".encode()
    async with liar(lie) as false, counting_rollout() as honest, generating() as generation:
        generation.replace(ServingRollouts((false, honest.serving)))
        found = await pieces(generation, PROMPT, COUNT, top_logprobs=asked)
        assert found[-1].response.tokens == expected(PROMPT, COUNT)
        assert honest.engine.requests[0].begun.tokens == ()


async def test_a_rollout_that_was_lost_is_not_asked_again_at_once_for_the_prompt_in_its_cache() -> (
    None
):
    asked = []

    async def fails(request: web.Request) -> web.StreamResponse:
        asked.append(request)
        return web.Response(status=500)

    async with rollout(fails) as false, counting_rollout() as honest:
        await answer_beside(false, honest, prompt=(3,) * 2 * BLOCK)
    assert len(asked) == 1


async def test_a_rollout_that_says_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_client, "SILENT_SECONDS", 0.1)
    over = asyncio.Event()

    async def silent(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await over.wait()
        return response

    async with rollout(silent) as false, counting_rollout() as honest:
        async with asyncio.timeout(10):
            await answer_beside(false, honest)
        over.set()


async def test_rollouts_that_all_end_too_early_end_the_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(continued_generation, "MOST_MOVES", 3)
    monkeypatch.setattr(routing, "AVOID_SECONDS", 0.0)
    async with liar() as false, generating() as generation:
        generation.replace(ServingRollouts((false,)))
        with pytest.raises(NoRolloutError, match="ended before the response"):
            await sampled(generation, PROMPT, COUNT)


REFUSALS = {
    "line": (f"{to_json(GenerationLine(error='it is too long', final=True))}\n".encode(), 200),
    "status": (b'{"error": "it is too long"}', 400),
}


@pytest.mark.parametrize("kind", REFUSALS)
async def test_a_refusal_of_one_rollout_alone_is_not_believed(kind: str) -> None:
    chunk, status = REFUSALS[kind]
    async with liar(chunk, status=status) as false, counting_rollout() as honest:
        await answer_beside(false, honest)


@pytest.mark.parametrize("status", [400, 413])
@pytest.mark.parametrize("count", [1, 2])
async def test_a_refusal_of_the_only_rollout_or_of_two_is_the_answer(
    count: int, status: int
) -> None:
    chunk, _ = REFUSALS["status"]
    async with (
        liar(chunk, status=status) as one,
        liar(chunk, status=status) as other,
        generating() as generation,
    ):
        generation.replace(ServingRollouts((one, other)[:count]))
        with pytest.raises(UnanswerableError, match="it is too long"):
            await sampled(generation, PROMPT, COUNT)


async def test_an_endless_refusal_is_not_read() -> None:
    async with (
        liar(b"x" * 2**16, status=503, endless=True) as false,
        counting_rollout() as honest,
    ):
        async with asyncio.timeout(10):
            await answer_beside(false, honest)


async def test_a_redirection_is_not_followed() -> None:
    reached = []

    async def elsewhere(request: web.Request) -> web.Response:
        reached.append(request.path)
        return web.Response()

    async with rollout(elsewhere) as other, counting_rollout() as honest:
        target = f"http://{other.address}{GENERATE_ROUTE}"

        async def redirect(_: web.Request) -> web.StreamResponse:
            raise web.HTTPTemporaryRedirect(target)

        async with rollout(redirect) as false:
            await answer_beside(false, honest)
    assert reached == []


async def test_what_a_request_makes_every_rollout_say_counts_against_none_of_them() -> None:
    nan = line(3, logprob=math.nan)
    async with liar(nan) as one, liar(nan) as other, generating() as generation:
        generation.replace(ServingRollouts((one, other)))
        async with asyncio.timeout(5):
            with pytest.raises(NoRolloutError, match="log-probability nan; the request may be"):
                await sampled(generation, PROMPT, COUNT)
        now = time.monotonic()
        chosen = {generation.routes.choose((at,), now) for at in range(8)}
        assert chosen == {one, other}


async def test_a_liar_is_avoided_once_another_rollout_has_answered() -> None:
    lie = line(VOCABULARY)
    async with liar(lie) as false, counting_rollout() as honest, generating() as generation:
        generation.replace(ServingRollouts((false, honest.serving)))
        assert await sampled(generation, PROMPT, COUNT) == expected(PROMPT, COUNT)
        chosen = {generation.routes.choose((at,), time.monotonic()) for at in range(8)}
        assert chosen == {honest.serving}


PIECE = line(3)


@pytest.mark.parametrize(
    "flood",
    [
        b"\n" * (1 << 16),
        b" " * (1 << 16) + b"\n",
        b"x" * (1 << 16),
        line() * 200,
        PIECE.rstrip() + b" " * (1 << 16) + b"\n",
    ],
    ids=["newlines", "blanks", "endless_line", "no_tokens", "padded"],
)
async def test_a_flood_is_cut_off_and_its_rollout_left_out_for_long(
    flood: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds = LineBounds(longest=1 << 17, nbytes=1 << 18, bytes_each_second=1 << 16)
    monkeypatch.setattr(rollout_client, "BOUNDS", bounds)
    monkeypatch.setattr(routing, "AVOID_SECONDS", 0.0)
    async with (
        asyncio.timeout(20),
        liar(flood, endless=True) as false,
        counting_rollout() as honest,
        generating() as generation,
    ):
        generation.replace(ServingRollouts((false, honest.serving)))
        await sampled(generation, PROMPT, COUNT)
        assert generation.routes.choose(PROMPT, time.monotonic()) == honest.serving
        left_out = generation.routes._avoided[false.address] - time.monotonic()
        assert left_out > routing.ABUSE_SECONDS - 20


@pytest.mark.parametrize("status", [200, 307])
async def test_a_compressed_answer_and_a_redirect_leave_a_rollout_out_for_long(status: int) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.headers["Accept-Encoding"] == "identity"
        headers = {"Content-Encoding": "gzip", "Location": "/elsewhere"}
        return web.Response(status=status, headers=headers, body=b"no gzip")

    async with rollout(answer) as false, counting_rollout() as honest, generating() as generation:
        generation.replace(ServingRollouts((false, honest.serving)))
        await sampled(generation, PROMPT, COUNT)
        left_out = generation.routes._avoided[false.address] - time.monotonic()
        assert left_out > routing.ABUSE_SECONDS - 10


async def test_lines_without_tokens_are_bounded() -> None:
    async with (
        liar(line() * 150) as false,
        counting_rollout() as honest,
        generating() as generation,
    ):
        generation.replace(ServingRollouts((false, honest.serving)))
        await sampled(generation, PROMPT, COUNT)
        left_out = generation.routes._avoided[false.address] - time.monotonic()
        assert left_out > routing.AVOID_SECONDS, "an answer that only ended early is no abuse"
