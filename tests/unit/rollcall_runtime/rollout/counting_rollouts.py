"""Rollouts with a generation endpoint, whose tokens follow from the prompt and their numbers."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import unused_port

from rollcall_protocol.pod_contract import GENERATE_ROUTE
from rollcall_protocol.prompts.sample_check import SampleBounds
from rollcall_protocol.wire.ids import Lineage, Version
from rollcall_protocol.wire.serving_rollouts import ServingRollout
from rollcall_runtime.rollout.generation_endpoint import GenerationEndpoint
from rollcall_runtime.rollout.inference_engine import GenerationRequest, NewTokens
from rollcall_runtime.rollout.served_versions import ServedVersions
from rollcall_runtime.sync.weights.tickets import TicketKeys, sign_ticket
from rollcall_runtime.worker.bounded_listener import BoundedRunner
from tests.unit.rollcall_runtime.rollout.fake_engine import FakeEngine, rollout_metrics

ADDRESS, KEY = "127.0.0.1", "ab" * 32
VOCABULARY, POSITIONS, LONGEST = 104, 256, 24
SPECIAL = 102


def expected(prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
    """The tokens that every rollout samples for `prompt`: letters of the tests' tokenizer, and
    special tokens, which have no text.
    """
    letters = (68 + (sum(prompt) + number) % 20 for number in range(count))
    return tuple(SPECIAL if number % 7 == 5 else one for number, one in enumerate(letters))


class CountingEngine(FakeEngine):
    """A token at a time, each `pause` seconds; `number` is the version of the weights."""

    def __init__(self, *, pause: float = 0.0, number: int = 0) -> None:
        super().__init__()
        self.pause, self._version = pause, number
        self.sampled = 0
        self.running = 0

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[NewTokens, None]:
        self.requests.append(request)
        self.running += 1
        try:
            count = request.sampling.max_tokens or LONGEST
            tokens = expected(request.prompt, count)
            for at in range(len(request.begun.tokens), count):
                await asyncio.sleep(self.pause)
                if self.error is not None:
                    raise self.error
                self.sampled += 1
                version = self._version or 0
                finished = at == count - 1
                likely = tuple((tokens[at] - n, -0.5 - n) for n in range(request.top_logprobs))
                top = (likely,) if likely else ()
                yield NewTokens((tokens[at],), (-0.5,), (version,), finished=finished, top=top)
        finally:
            self.running -= 1
            self.ended += 1


def tokens_each(count: int, *, pods: int) -> Any:
    """A `CountingEngine.generate` that fails after `count` tokens, in the first `pods` calls."""
    sample, asked = CountingEngine.generate, []

    async def generate(
        engine: CountingEngine, request: GenerationRequest
    ) -> AsyncGenerator[NewTokens, None]:
        asked.append(request)
        left = count if len(asked) <= pods else LONGEST
        async with aclosing(sample(engine, request)) as pieces:
            async for piece in pieces:
                yield piece
                left -= 1
                if not left:
                    raise RuntimeError("lost")

    return generate


@dataclass(slots=True)
class CountingRollout:
    """A rollout. `kill` breaks its connections and closes its port, as the end of its process."""

    engine: CountingEngine
    endpoint: GenerationEndpoint
    name: str
    draining: bool = False
    runner: BoundedRunner | None = None
    port: int = field(default_factory=unused_port)
    connections: set[Any] = field(default_factory=set)

    @property
    def serving(self) -> ServingRollout:
        ticket = sign_ticket(KEY, GENERATE_ROUTE)
        return ServingRollout(self.name, f"{ADDRESS}:{self.port}", ticket)

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.port}{GENERATE_ROUTE}"

    async def kill(self) -> None:
        for transport in list(self.connections):
            transport.abort()
        await self.close()

    async def close(self) -> None:
        if self.runner is not None:
            await self.runner.cleanup()


@asynccontextmanager
async def counting_rollout(
    name: str = "cpu-0",
    *,
    pause: float = 0.0,
    number: int = 0,
    at_once: int = 512,
    positions: int = POSITIONS,
) -> AsyncIterator[CountingRollout]:
    """A rollout that serves version `number`."""
    keys, served, engine = (
        TicketKeys(),
        ServedVersions(),
        CountingEngine(pause=pause, number=number),
    )
    keys.accept("coordinator", KEY)
    with served.changing_to(Version(Lineage(1, 1), number)):
        pass
    rollout: CountingRollout

    def draining() -> bool:
        return rollout.draining

    endpoint = GenerationEndpoint(
        engine=engine,
        served=served,
        bounds=SampleBounds(VOCABULARY, positions),
        tickets=keys,
        metrics=rollout_metrics(),
        draining=draining,
        at_once=lambda: at_once,
    )
    rollout = CountingRollout(engine, endpoint, name)

    async def handle(request: web.Request) -> web.StreamResponse:
        rollout.connections.add(request.transport)
        return await endpoint.handle(request)

    application = web.Application()
    application.router.add_post(GENERATE_ROUTE, handle)
    # As the agent's: who leaves is found by what is written, not by a cancelled handler.
    rollout.runner = BoundedRunner(application, refused=lambda _: None, shutdown_timeout=0.1)
    await rollout.runner.setup()
    await web.TCPSite(rollout.runner, ADDRESS, rollout.port).start()
    try:
        yield rollout
    finally:
        await rollout.close()
