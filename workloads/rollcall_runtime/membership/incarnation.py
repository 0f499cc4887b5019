"""Which weights each incarnation of the trainer published, of which steps."""

from dataclasses import dataclass

from rollcall_protocol.wire.ids import Lineage


@dataclass(frozen=True, slots=True)
class TrainerIncarnation:
    """A life of the trainer: the first version it published was `number`, with `step`'s weights."""

    lineage: Lineage
    number: int
    step: int

    def step_of(self, number: int, *, every: int) -> int:
        """The step whose weights it published as `number`; a version follows each `every` steps."""
        if number == self.number:
            return self.step
        return (self.step // every + number - self.number) * every
