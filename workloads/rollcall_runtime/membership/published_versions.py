"""Incarnations of the trainer: which step's weights each of them published as which version."""

from dataclasses import dataclass

from rollcall_protocol.wire.ids import Lineage


@dataclass(frozen=True, slots=True)
class TrainerIncarnation:
    """One run of the trainer process: it published `step`'s weights as version `number` first."""

    lineage: Lineage
    number: int
    step: int

    def step_of(self, number: int, *, every: int) -> int:
        """The step whose weights it published as `number`, with a version every `every` steps."""
        if number == self.number:
            return self.step
        return (self.step // every + number - self.number) * every
