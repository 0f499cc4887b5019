"""Former lives of the trainer: which weights the rollouts hold from them, of which steps; and the
wait until the rollouts are back.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rollcall_protocol.env import AGENT_PORT
from rollcall_protocol.ids import Lineage, Version
from rollcall_runtime.coordinator.group import SyncGroup


@dataclass(frozen=True, slots=True)
class Life:
    """A life of the trainer: the first version it published was `number`, with `step`'s weights."""

    lineage: Lineage
    number: int
    step: int

    def step_of(self, number: int, *, every: int) -> int:
        """The step whose weights it published as `number`; a version follows each `every` steps."""
        if number == self.number:
            return self.step
        return (self.step // every + number - self.number) * every


@dataclass(frozen=True, slots=True)
class Holder:
    """A registered rollout that serves the whole of `version`; `address` is host:port."""

    version: Version
    address: str


def find_holders(groups: Iterable[SyncGroup]) -> list[Holder]:
    """All that hold a version; not those that hold but a shard of it."""
    return [
        Holder(member.held, f"{member.hello.address}:{AGENT_PORT}")
        for group in groups
        for member in group.machine.members.by_pod.values()
        if member.held is not None and member.connected and not member.hello.shard
    ]


async def until_back(
    missing: Callable[[], Sequence[object]], joined: asyncio.Event, *, seconds: float
) -> None:
    """Wait, no longer than `seconds`, until none is missing; `joined` is set when one comes."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while missing():
                joined.clear()
                await joined.wait()
