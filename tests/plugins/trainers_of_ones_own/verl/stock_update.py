"""An update as verl's own manager makes it, with engines of this process in the place of actors.

The calls and their order are those of verl 0.9.1, verl/checkpoint_engine/base.py: lines 422 to 447
(`CheckpointEngineManager.build_process_group`) and 534 to 554 (`update_weights`).
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from rollcall.verl import RollcallCheckpointEngine

T = TypeVar("T")
Weights = dict[str, torch.Tensor]


class Rank:
    """A rank of verl's actor: one thread does one call at a time, as an actor's event loop does."""

    def __init__(self, engine: RollcallCheckpointEngine) -> None:
        self.engine = engine
        self._thread = ThreadPoolExecutor(1)

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """What it returns, in the rank's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    async def send(
        self, tensors: Iterator[tuple[str, torch.Tensor]], step: int
    ) -> dict[str, float]:
        """What the engine answers to `send_weights`."""
        send = self.engine.send_weights
        return await self.call(lambda: asyncio.run(send(tensors, global_steps=step)))


async def update(
    actor: Sequence[Rank],
    rollouts: Sequence[RollcallCheckpointEngine],
    tensors: Sequence[Iterator[tuple[str, torch.Tensor]]],
    *,
    step: int,
) -> tuple[dict[str, float], list[Weights]]:
    """Rank 0's figures, and what each rollout received; `tensors` are those of each rank."""
    await begin(actor, rollouts)
    sending = [rank.send(walked, step) for rank, walked in zip(actor, tensors, strict=True)]
    receiving = [received(engine, step) for engine in rollouts]
    # As ray.get does, this raises the first error, and waits for nothing else then.
    sent, found = await asyncio.gather(asyncio.gather(*sending), asyncio.gather(*receiving))
    for rank in actor:
        await rank.call(rank.engine.finalize)
    for engine in rollouts:
        engine.finalize()
    return sent[0], found


async def begin(actor: Sequence[Rank], rollouts: Sequence[RollcallCheckpointEngine]) -> None:
    """All engines know their part."""
    metadata = [await rank.call(rank.engine.prepare) for rank in actor]
    metadata += [engine.prepare() for engine in rollouts]
    ours, theirs = RollcallCheckpointEngine.build_topology(len(actor), len(rollouts), metadata)
    for i, rank in enumerate(actor):
        await rank.call(rank.engine.init_process_group, *_of(i, ours))
    for i, engine in enumerate(rollouts):
        await asyncio.to_thread(engine.init_process_group, *_of(i, theirs))


def _of(i: int, group: dict[str, list[Any]]) -> tuple[str, int]:
    return group["part"][i], group["at_least"][i]


async def received(engine: RollcallCheckpointEngine, step: int) -> Weights:
    """As an adapter of verl loads it."""
    return {name: t.clone() async for name, t in engine.receive_weights(global_steps=step)}
