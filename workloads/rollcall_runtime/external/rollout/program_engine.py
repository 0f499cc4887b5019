"""Gives received weights to a program of the user's own, and samples nothing."""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING

from rollcall_protocol.wire.external_rollout import (
    AgentMessage,
    AgentReady,
    ApplyWeights,
    ProgramMessage,
    ReleaseWeights,
    SharedWeights,
    TakeWeights,
    WeightsApplied,
    WeightsTaken,
)
from rollcall_protocol.wire.library_link import CancelRequest
from rollcall_runtime.rollout.inference_engine import InferenceEngine
from rollcall_runtime.sync.memory.shared_buffers import SharedBuffer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable

    from torch import Tensor

    from rollcall_protocol.wire.generation import GenerationRequest, NewTokens
    from rollcall_runtime.rollout.inference_engine import PauseMode
    from rollcall_runtime.sync.weights.snapshots import WeightSnapshot

log = logging.getLogger(__name__)


class ProgramEngine(InferenceEngine):
    """The engine of a rollout whose program takes weights by the library. In one event loop.

    The weights stay where they were received. The program takes them when it asks; or, with
    `by_function`, they are committed once its function has returned from them.
    """

    reads_shared_memory = True
    generates = False

    def __init__(
        self, pod: str, send: Callable[[AgentMessage], None], *, by_function: bool
    ) -> None:
        self._pod, self._send, self._by_function = pod, send, by_function
        self._numbers = itertools.count(1)
        self._holds: dict[int, WeightSnapshot] = {}  # what the program has
        self._newest: tuple[int, WeightSnapshot] | None = None
        self._changed = asyncio.Condition()
        self._waiting: dict[int, asyncio.Task[None]] = {}
        self._applying: tuple[int, asyncio.Future[str]] | None = None  # a hold; the function's end

    async def start(self) -> None:
        self._send(AgentReady())

    @property
    def version(self) -> int | None:
        return self._newest[0] if self._newest else None

    async def answer(self, messages: AsyncIterator[ProgramMessage]) -> None:
        """Answer the program until its messages end."""
        try:
            async for message in messages:
                self._take(message)
        finally:
            self._program_ended()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[NewTokens, None]:
        del request
        pieces: tuple[NewTokens, ...] = ()
        for piece in pieces:
            yield piece
        raise ValueError(
            f"rollout {self._pod} is a program that takes weights by rollcall.Rollout, and samples "
            "nothing; send the request to another rollout"
        )

    async def update_weights(
        self,
        weights: Iterable[tuple[str, Tensor]],
        *,
        version: int,
        running: PauseMode,
        seconds: float,
    ) -> None:
        raise NotImplementedError("the program maps staged weights: see update_from_staged")

    async def update_from_staged(
        self,
        staged: WeightSnapshot,
        weights: Iterable[tuple[str, Tensor]],
        *,
        version: int,
        running: PauseMode,
        seconds: float,
    ) -> None:
        del weights, running
        if self._by_function:
            await self._apply(staged, version, seconds)
        self._replace((version, staged.share()))
        async with self._changed:
            self._changed.notify_all()

    async def close(self) -> None:
        self._program_ended()
        self._replace(None)
        for held in self._holds.values():
            held.release()
        self._holds.clear()

    # --- inside --------------------------------------------------------------------------------

    def _take(self, message: ProgramMessage) -> None:
        match message:
            case TakeWeights():
                task = asyncio.create_task(self._give(message))
                self._waiting[message.request] = task
                task.add_done_callback(lambda _: self._waiting.pop(message.request))
            case CancelRequest():
                if (task_of := self._waiting.get(message.cancelled)) is not None:
                    task_of.cancel()
            case ReleaseWeights():
                self._holds.pop(message.hold).release()
            case WeightsApplied():
                self._applied(message)

    async def _give(self, asked: TakeWeights) -> None:
        async with self._changed:
            while self._newest is None or self._newest[0] < asked.at_least:
                await self._changed.wait()
        self._send(WeightsTaken(asked.request, self._lend(*self._newest)))

    def _lend(self, version: int, staged: WeightSnapshot) -> SharedWeights:
        buffer = staged.buffer
        assert isinstance(buffer, SharedBuffer)  # noqa: S101 - as `reads_shared_memory` asks
        number = next(self._numbers)
        self._holds[number] = staged.share()
        return SharedWeights(number, version, staged.manifest, buffer.export())

    async def _apply(self, staged: WeightSnapshot, version: int, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                if self._applying is not None:  # it was too slow before
                    await asyncio.shield(self._applying[1])
                lent = self._lend(version, staged)
                ended = asyncio.get_running_loop().create_future()
                self._applying = lent.hold, ended
                self._send(ApplyWeights(lent))
                error = await asyncio.shield(ended)
        except TimeoutError as late:
            raise TimeoutError(
                f"the program's function has not returned from version {version} in {seconds:g} s, "
                "half of weightSync.commitTimeoutSeconds"
            ) from late
        if error:
            raise RuntimeError(f"the program's function failed: {error}")

    def _applied(self, message: WeightsApplied) -> None:
        if self._applying is not None and self._applying[0] == message.hold:
            self._applying[1].set_result(message.error)
            self._applying = None

    def _program_ended(self) -> None:
        if self._applying is not None:
            self._applied(WeightsApplied(self._applying[0], "the program has ended"))
        for task in self._waiting.values():
            task.cancel()

    def _replace(self, newest: tuple[int, WeightSnapshot] | None) -> None:
        old, self._newest = self._newest, newest
        if old is not None:
            old[1].release()
