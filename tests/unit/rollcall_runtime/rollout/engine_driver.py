"""Drives an inference engine for tests that have no event loop of their own."""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import TypeVar

from torch import Tensor

from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_protocol.wire.partial_responses import Response
from rollcall_runtime.rollout.inference_engine import (
    GenerationRequest,
    InferenceEngine,
    NewTokens,
    PauseMode,
)

_Result = TypeVar("_Result")
SECONDS = 30.0  # that no call here comes near


async def respond(engine: InferenceEngine, request: GenerationRequest) -> Response:
    """The whole response; one that was cut short is not finished."""
    pieces = [piece async for piece in engine.generate(request)]
    return joined(request.begun, pieces)


def joined(begun: Response, pieces: Iterable[NewTokens]) -> Response:
    whole = begun
    for piece in pieces:
        whole = piece.after(whole)
    return whole


def requests_of(
    prompts: Sequence[Sequence[int]],
    *,
    group_size: int,
    seed: int,
    sampling: Sequence[SamplingConfig] | None = None,
    begun: Sequence[Sequence[Response]] | None = None,
) -> list[list[GenerationRequest]]:
    return [
        [
            GenerationRequest(
                tuple(prompt),
                sampling[number] if sampling else SamplingConfig(),
                seed=seed * 1_000_003 + number * 10_007 + sample,
                begun=begun[number][sample] if begun else Response(),
            )
            for sample in range(group_size)
        ]
        for number, prompt in enumerate(prompts)
    ]


class EngineDriver:
    """Starts `engine` in an event loop, which runs while a method is called."""

    def __init__(self, engine: InferenceEngine) -> None:
        self.engine = engine
        self._runner = asyncio.Runner()
        try:
            self._runner.run(engine.start())
        except BaseException:
            self.close()
            raise

    def run(self, work: Coroutine[None, None, _Result]) -> _Result:
        """What `work` returns; it ends within a bound."""

        async def bounded() -> _Result:
            async with asyncio.timeout(SECONDS):
                return await work

        return self._runner.run(bounded())

    def load_weights(
        self,
        weights: Iterable[tuple[str, Tensor]],
        *,
        version: int,
        running: PauseMode = PauseMode.KEEP,
    ) -> None:
        self.run(
            self.engine.update_weights(weights, version=version, running=running, seconds=SECONDS)
        )

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        group_size: int,
        seed: int,
        sampling: Sequence[SamplingConfig] | None = None,
        begun: Sequence[Sequence[Response]] | None = None,
    ) -> list[list[Response]]:
        """`group_size` responses to each prompt, all requested together; finished ones stay."""
        groups = requests_of(
            prompts, group_size=group_size, seed=seed, sampling=sampling, begun=begun
        )

        async def one(request: GenerationRequest) -> Response:
            if request.begun.finished:
                return request.begun
            return await respond(self.engine, request)

        async def every() -> list[Response]:
            asked = (one(request) for group in groups for request in group)
            return list(await asyncio.gather(*asked))

        found = self.run(every())
        return [found[at : at + group_size] for at in range(0, len(found), group_size)]

    def close(self) -> None:
        self._runner.run(self.engine.close())
        self._runner.close()
