"""The jobs whose front is measured, and requests to it and past it."""

from __future__ import annotations

import json
import statistics
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp

from rollcall_protocol.pod_contract import FRONT_PORT, FRONT_STREAM_ROUTE, MEMBERSHIP_PORT
from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_protocol.wire.generation import GenerationRequest
from rollcall_protocol.wire.messages import loads
from rollcall_protocol.wire.roster import EpochCause
from rollcall_protocol.wire.serving_rollouts import ServingRollout, ServingRollouts
from rollcall_runtime.generation.rollout_client import generated_lines, open_session
from tests.process.harness import START_SECONDS, LocalJob, in_sync

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.process.pods import Pod

KEY = "key-of-the-measured"
_PROMPT = tuple(range(10, 42))


@dataclass(frozen=True, slots=True)
class Asked:
    """A request. `number` chooses its prompt and, past the front, its rollout."""

    number: int
    seed: int
    tokens: int

    @property
    def prompt(self) -> tuple[int, ...]:
        return (*_PROMPT, self.number % 90)


Way = Callable[[Asked], AsyncGenerator[int, None]]
"""Makes a request: the number of tokens in each piece of the answer, as it comes."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The running job's `front`, and the ways to ask its rollouts."""

    job: LocalJob
    front: Pod
    ways: dict[str, Way]


@asynccontextmanager
async def measured(job: LocalJob, *, rollouts: int, **variables: str) -> AsyncIterator[Measured]:
    """Start `job` with rollouts that have `variables`; all serve."""
    async with (
        job,
        open_session() as own,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client,
    ):
        await job.start(rollouts=0)
        for _ in range(rollouts):
            await job.launch(**variables)
        await job.push_roster(EpochCause.JOB_STARTED)
        front = await job.start_front(KEY)
        await job.operator.until(lambda s: in_sync(s, *job.rollouts), seconds=START_SECONDS)
        await front.reaches("front_rollouts", rollouts, seconds=60)
        serving = await _serving(job, front, client)
        ways = {"direct": _directly(serving, own), "front": _through(job, front, client)}
        yield Measured(job, front, ways)


def percentiles(values: list[float]) -> dict[str, float]:
    ordered = statistics.quantiles(values, n=100, method="inclusive")
    return {"p50": round(ordered[49], 2), "p99": round(ordered[98], 2)}


async def _serving(
    job: LocalJob, front: Pod, session: aiohttp.ClientSession
) -> tuple[ServingRollout, ...]:
    """The rollouts with tickets, as the front learns them."""
    url = f"http://{job.trainer.address}:{MEMBERSHIP_PORT}{FRONT_STREAM_ROUTE}"
    headers = {"Authorization": f"Bearer {front.token(job.config.uid)}"}
    async with session.get(url, headers=headers) as answer:
        return loads(await answer.content.readline(), ServingRollouts).rollouts


def _through(job: LocalJob, front: Pod, session: aiohttp.ClientSession) -> Way:
    url = f"http://{front.address}:{FRONT_PORT}/v1/completions"
    headers = {"Authorization": f"Bearer {KEY}"}

    async def way(asked: Asked) -> AsyncGenerator[int, None]:
        body = {"model": job.config.model, "prompt": asked.prompt, "seed": asked.seed}
        body |= {"max_tokens": asked.tokens, "stream": True, "return_token_ids": True}
        async with session.post(url, json=body, headers=headers) as answer:
            answer.raise_for_status()
            async for line in answer.content:
                text = line.decode().strip().removeprefix("data: ")
                if text and text != "[DONE]":
                    event: dict[str, Any] = json.loads(text)
                    yield len(event["choices"][0]["token_ids"])

    return way


def _directly(rollouts: tuple[ServingRollout, ...], session: aiohttp.ClientSession) -> Way:
    async def way(asked: Asked) -> AsyncGenerator[int, None]:
        rollout = rollouts[asked.number % len(rollouts)]
        request = GenerationRequest(
            asked.prompt, SamplingConfig(max_tokens=asked.tokens), asked.seed
        )
        async for line in generated_lines(session, rollout, request):
            assert line.new is not None
            yield len(line.new.tokens)

    return way
