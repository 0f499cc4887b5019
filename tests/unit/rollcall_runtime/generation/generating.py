"""A generation over counting rollouts, and a client of it that reads whole responses."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from rollcall_protocol.prompts.sample_check import SampleBounds
from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_protocol.wire.generation import GenerationRequest
from rollcall_protocol.wire.serving_rollouts import ServingRollouts
from rollcall_runtime.generation.continued_generation import GeneratedSoFar, Generation
from rollcall_runtime.generation.rollout_client import open_session
from tests.unit.rollcall_runtime.rollout.counting_rollouts import (
    POSITIONS,
    VOCABULARY,
    CountingRollout,
)

SECONDS = 20.0  # for a response


@asynccontextmanager
async def generating(
    *rollouts: CountingRollout, moved: Callable[[], None] = lambda: None
) -> AsyncIterator[Generation]:
    """A generation that knows `rollouts`."""
    async with open_session() as session:
        generation = Generation(session, moved, SampleBounds(VOCABULARY, POSITIONS))
        generation.replace(ServingRollouts(tuple(rollout.serving for rollout in rollouts)))
        yield generation


async def pieces(
    generation: Generation, prompt: tuple[int, ...], count: int, **more: Any
) -> list[GeneratedSoFar]:
    """A response of `count` tokens after each piece. `more` of what is asked for."""
    asked = GenerationRequest(prompt, SamplingConfig(max_tokens=count), seed=1, **more)
    async with asyncio.timeout(SECONDS):
        return [so_far async for so_far in generation.generate(asked)]


async def sampled(generation: Generation, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
    """The tokens of a response."""
    return (await pieces(generation, prompt, count))[-1].response.tokens
