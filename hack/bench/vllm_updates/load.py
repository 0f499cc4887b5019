"""Streams of requests, one after the other on each, while something else happens."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_protocol.wire.partial_responses import Response
from rollcall_runtime.rollout.inference_engine import GenerationRequest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hack.bench.vllm_updates.served_models import Served

PROMPT = tuple(range(3, 35))


@dataclass(slots=True)
class Sampled:
    """What came to a request; `arrived`: the version that each token had when it came."""

    prompt: tuple[int, ...]
    seed: int
    response: Response = field(default_factory=Response)
    arrived: tuple[int, ...] = ()


@dataclass(slots=True)
class Load:
    """What the streams got. `times` of tokens are of each stream, in seconds of the clock."""

    responses: list[Sampled] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    unfinished: int = 0
    times: list[list[float]] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """All that came so far."""
        return sum(map(len, self.times))

    def longest_gaps(self, first: float, last: float) -> list[float]:
        """Of each stream: the longest time without a token that meets the interval."""
        return [
            max(
                (
                    after - before
                    for before, after in pairwise(times)
                    if after >= first and before <= last
                ),
                default=0.0,
            )
            for times in self.times
        ]


@asynccontextmanager
async def load(served: Served, *, streams: int, tokens: int) -> AsyncIterator[Load]:
    """Streams of requests for `tokens` each; in the end running requests end by themselves."""
    found, ending = Load(times=[[] for _ in range(streams)]), asyncio.Event()
    running = [
        asyncio.create_task(_stream(served, found, ending, number, tokens))
        for number in range(streams)
    ]
    try:
        yield found
    finally:
        ending.set()
        await asyncio.gather(*running)


async def _stream(
    served: Served, found: Load, ending: asyncio.Event, number: int, tokens: int
) -> None:
    sampling, count = SamplingConfig(max_tokens=tokens), 0
    while not ending.is_set():
        count += 1
        one = Sampled((number, *PROMPT), seed=1000 * number + count)
        found.responses.append(one)  # also what came before a failure
        request = GenerationRequest(one.prompt, sampling, one.seed)
        try:
            async for piece in served.engine.generate(request):
                one.response = piece.after(one.response)
                one.arrived += piece.versions
                found.times[number].extend([time.monotonic()] * len(piece.tokens))
        except (RuntimeError, OSError, ValueError) as error:
            found.failures.append(f"{type(error).__name__}: {error}")
            return
        found.unfinished += not one.response.finished or len(one.response.tokens) != tokens
