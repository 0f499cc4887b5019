"""What a search is bounded by: members, rosters, versions, faults."""

from dataclasses import dataclass
from enum import StrEnum


class Fault(StrEnum):
    """What may go wrong. Each costs one of the scope's faults."""

    CRASH = "a rollout's container dies"
    BREAK = "a stream breaks"
    LATE = "a deadline passes while there is still something to happen"
    JOIN = "a join fails"
    MOVE = "a transfer fails"
    CORRUPT = "what a member received is corrupt"
    APPLY = "a member cannot load a version"
    FETCH = "a catch-up fails"
    RESTART = "the trainer's container restarts"
    REPLACE = "the trainer's pod is replaced, and the old one goes on"
    ASTRAY = "a member finds a trainer's pod that was replaced"
    STRAY_PUSH = "an old, foreign or contradicting roster is pushed"


ROLLOUT_FAULTS = frozenset({Fault.CRASH, Fault.BREAK, Fault.LATE})
ENGINE_FAULTS = frozenset({Fault.JOIN, Fault.MOVE, Fault.CORRUPT, Fault.APPLY, Fault.FETCH})
TRAINER_FAULTS = frozenset({Fault.RESTART, Fault.REPLACE, Fault.ASTRAY, Fault.STRAY_PUSH})


@dataclass(frozen=True, slots=True)
class Scope:
    """Bounds of one search.

    `rosters` has the rollout pods (by number) of each epoch; a replaced trainer gets one epoch
    more. `running`: the search begins with a session of the first roster, which serves a first
    version if there are any `versions`. `prompt_sender`: what the trainer's own sender says
    arrives at once, as it nearly does in production, where it crosses no network. `reduced`: of
    moves that commute one order is enough (see `Moves.first`).
    """

    name: str
    rosters: tuple[tuple[int, ...], ...]
    faults: int
    kinds: frozenset[Fault]
    versions: int = 0
    max_staleness: int = 0
    running: bool = False
    prompt_sender: bool = True
    reduced: bool = True

    @property
    def pods(self) -> int:
        """Rollout pods that are named."""
        return 1 + max((slot for roster in self.rosters for slot in roster), default=-1)
