"""Scopes of the exhaustive search: how many members, rosters, versions and faults it may use.

Small scopes are explored in each run of the tests, large ones in the tests marked as slow.
"""

from dataclasses import dataclass
from enum import StrEnum


class ModelFault(StrEnum):
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


ROLLOUT_FAULTS = frozenset({ModelFault.CRASH, ModelFault.BREAK, ModelFault.LATE})
ENGINE_FAULTS = frozenset(
    {ModelFault.JOIN, ModelFault.MOVE, ModelFault.CORRUPT, ModelFault.APPLY, ModelFault.FETCH}
)
TRAINER_FAULTS = frozenset(
    {ModelFault.RESTART, ModelFault.REPLACE, ModelFault.ASTRAY, ModelFault.STRAY_PUSH}
)
NO_FAULTS: frozenset[ModelFault] = frozenset()
CRASHES = frozenset({ModelFault.CRASH})
HANGS = frozenset({ModelFault.LATE})
CRASHES_AND_HANGS = CRASHES | HANGS
TRAINER_RESTARTS = frozenset({ModelFault.RESTART, ModelFault.STRAY_PUSH})
TRAINER_REPLACEMENTS = frozenset({ModelFault.REPLACE, ModelFault.STRAY_PUSH})

Rosters = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class SearchScope:
    """Bounds of one search.

    `rosters` has the rollout pods (by number) of each epoch; a replaced trainer gets one epoch
    more. `faults` is how many of `kinds` may happen. `running`: the search begins with a session of
    the first roster, which serves a first version if there are any `versions`. `prompt_sender`:
    what the trainer's own sender replies arrives at once, as it nearly does in production, where it
    crosses no network. `reduced`: of moves that commute one order is enough (see
    `EnabledMoves.first`). `states` is the number of states that a whole search visits.
    """

    name: str
    rosters: Rosters
    faults: int = 0
    kinds: frozenset[ModelFault] = NO_FAULTS
    versions: int = 0
    max_staleness: int = 0
    running: bool = True
    prompt_sender: bool = True
    reduced: bool = True
    states: int = 0

    def __str__(self) -> str:
        return self.name

    @property
    def pods(self) -> int:
        """Number of rollout pods that the rosters name."""
        return 1 + max((slot for roster in self.rosters for slot in roster), default=-1)


ONE: Rosters = ((0,),)
TWO: Rosters = ((0, 1),)
ONE_JOINS: Rosters = ((0,), (0, 1))
ONE_LEAVES: Rosters = ((0, 1), (0,))
COME_AND_GO: Rosters = ((0, 1), (0, 1, 2), (0, 2))  # one joins, then another leaves

QUICK = (
    SearchScope("three start", ((0, 1, 2),), running=False, states=1_196),
    SearchScope("come and go", COME_AND_GO, states=278),
    SearchScope("one leaves", ONE_LEAVES, versions=2, states=123),
    SearchScope("one comes and dies", ONE_JOINS, 1, CRASHES, states=1_826),
    SearchScope(
        "one, in full",
        ONE,
        1,
        ROLLOUT_FAULTS,
        running=False,
        reduced=False,
        prompt_sender=False,
        states=5_208,
    ),
    SearchScope("engines fail", TWO, 1, ENGINE_FAULTS, versions=2, states=772),
    SearchScope(
        "rollouts fail", TWO, 1, CRASHES_AND_HANGS, versions=2, max_staleness=1, states=8_045
    ),
    SearchScope("the trainer fails", ONE, 1, TRAINER_FAULTS, versions=2, states=949),
    SearchScope("the trainer fails, one joins", ONE_JOINS, 1, TRAINER_RESTARTS, states=1_184),
    SearchScope("the trainer is replaced", ONE, 2, TRAINER_REPLACEMENTS, states=6_901),
)

LARGE = (
    SearchScope("one comes", ONE_JOINS, 1, HANGS, versions=2, states=42_693),
    SearchScope(
        "one leaves while a version is sent",
        ONE_LEAVES,
        1,
        ROLLOUT_FAULTS,
        versions=2,
        states=94_374,
    ),
    SearchScope(
        "versions pass by", TWO, 1, CRASHES_AND_HANGS, versions=3, max_staleness=1, states=52_529
    ),
    SearchScope("two fail", TWO, 2, ROLLOUT_FAULTS, states=29_697),
    SearchScope(
        "one comes and engines fail", ONE_JOINS, 1, ENGINE_FAULTS, versions=2, states=4_381
    ),
    SearchScope("the trainer fails twice", ONE, 2, TRAINER_FAULTS, versions=1, states=39_759),
    SearchScope(
        "engines fail twice", TWO, 2, ENGINE_FAULTS, versions=3, max_staleness=1, states=34_521
    ),
    SearchScope(
        "one, in full, with engines",
        ONE,
        1,
        ROLLOUT_FAULTS | ENGINE_FAULTS,
        versions=1,
        running=False,
        reduced=False,
        prompt_sender=False,
        states=23_879,
    ),
)

LARGEST = (
    SearchScope("three come and go, one fails", COME_AND_GO, 1, ROLLOUT_FAULTS, states=234_327),
    SearchScope("one comes while the trainer fails", ONE_JOINS, 1, TRAINER_FAULTS, states=167_454),
)
