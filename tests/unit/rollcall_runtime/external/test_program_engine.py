"""The engine of a rollout whose program takes the weights: what it lends, and until when."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_protocol.wire.external_rollout import (
    ApplyWeights,
    ReleaseWeights,
    TakeWeights,
    WeightsApplied,
    WeightsTaken,
)
from rollcall_protocol.wire.generation import GenerationRequest
from rollcall_protocol.wire.ids import Lineage, Version
from rollcall_protocol.wire.library_link import CancelRequest
from rollcall_runtime.external.rollout.program_engine import ProgramEngine
from rollcall_runtime.rollout.inference_engine import PauseMode
from rollcall_runtime.sync.weights.staging import StagingArea
from tests.unit.rollcall_runtime.sync.weights.test_catch_up import snapshot


class Program:
    """The program's end: `send` what it asks, and see what it was `sent`."""

    def __init__(self, *, by_function: bool = False) -> None:
        self.sent: asyncio.Queue[Any] = asyncio.Queue()
        self.engine = ProgramEngine("pod-0", self.sent.put_nowait, by_function=by_function)
        self.stage = StagingArea(shared=True)
        self._messages: asyncio.Queue[Any] = asyncio.Queue()
        self._answering = asyncio.create_task(self.engine.answer(self._all()))

    def send(self, *messages: Any) -> None:
        for message in messages:
            self._messages.put_nowait(message)

    async def receives(self, expected: type[Any]) -> Any:
        message = await asyncio.wait_for(self.sent.get(), 5)
        assert isinstance(message, expected)
        return message

    async def end(self) -> None:
        self.send(None)
        await self._answering

    async def commit(self, number: int, *, seconds: float = 5) -> None:
        version, weights = Version(Lineage(1, 1), number), snapshot()
        with self.stage.staging(version, weights.manifest, timeout=0) as buffer:
            buffer.write(0, weights.buffer.memory)
        with self.stage.committing(version) as staged:
            await self.engine.update_from_staged(
                staged, [], version=number, running=PauseMode.KEEP, seconds=seconds
            )

    async def _all(self) -> AsyncIterator[Any]:
        while (message := await self._messages.get()) is not None:
            yield message


async def test_the_newest_is_lent_until_it_is_released() -> None:
    program = Program()
    program.send(TakeWeights(1, 2))
    await program.commit(1)
    await asyncio.sleep(0.01)
    assert program.sent.empty()
    await program.commit(2)
    taken = await program.receives(WeightsTaken)
    assert (taken.request, taken.weights.version) == (1, 2)
    await program.commit(3)
    assert program.stage.state.in_use == 2, "what is lent, and what is served"
    program.send(ReleaseWeights(taken.weights.hold), TakeWeights(2, 0))
    assert (await program.receives(WeightsTaken)).weights.version == 3
    assert program.stage.state.in_use == 1
    await program.end()


async def test_a_request_that_is_cancelled_lends_nothing() -> None:
    program = Program()
    program.send(TakeWeights(1, 0), CancelRequest(1))
    await asyncio.sleep(0.01)
    await program.commit(1)
    program.send(CancelRequest(1), TakeWeights(2, 0))
    assert (await program.receives(WeightsTaken)).request == 2
    await program.end()


async def test_a_commit_waits_for_the_programs_function() -> None:
    program = Program(by_function=True)
    with pytest.raises(TimeoutError, match=r"not returned from version 1 in 0\.02 s"):
        await program.commit(1, seconds=0.02)
    first = await program.receives(ApplyWeights)
    second = asyncio.create_task(program.commit(2))
    await asyncio.sleep(0.01)
    assert program.sent.empty(), "one call at a time"
    program.send(ReleaseWeights(first.weights.hold), WeightsApplied(first.weights.hold))
    applying = (await program.receives(ApplyWeights)).weights
    assert (applying.version, program.engine.version, second.done()) == (2, None, False)
    program.send(WeightsApplied(applying.hold))
    await second
    assert program.engine.version == 2
    third = asyncio.create_task(program.commit(3))
    refused = (await program.receives(ApplyWeights)).weights
    program.send(WeightsApplied(refused.hold, "KeyError: 'x'"))
    with pytest.raises(RuntimeError, match="the program's function failed: KeyError: 'x'"):
        await third
    assert program.engine.version == 2
    fourth = asyncio.create_task(program.commit(4))
    await program.receives(ApplyWeights)
    await program.end()
    with pytest.raises(RuntimeError, match="the program has ended"):
        await fourth


async def test_requests_for_responses_are_refused() -> None:
    program = Program()
    with pytest.raises(ValueError, match="pod-0 is a program that takes weights"):
        await anext(program.engine.generate(GenerationRequest((1,), SamplingConfig(), 0)))
    await program.end()
