"""Which weights the rollouts hold from former lives of the trainer, and which steps those were."""

from collections.abc import Iterable
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
