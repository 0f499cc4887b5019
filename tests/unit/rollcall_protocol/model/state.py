"""The model's state: plain tuples of small numbers, so that it hashes fast and compares exactly.

Machines, messages and members' processes are interned: a state holds their numbers.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from rollcall_protocol.membership.member_machine import MemberMachine
from rollcall_protocol.wire.ids import MemberId, SessionId, Version

T = TypeVar("T")

# A stream: usable; ended, which both sides have to notice; the coordinator has noticed.
OPEN, ENDED, LEFT = range(3)


class InvariantViolation(AssertionError):  # noqa: N818 - it is what the search looks for
    """An invariant of the protocol does not hold."""


def require(holds: bool, what: str) -> None:
    """Raise InvariantViolation unless it holds."""
    if not holds:
        raise InvariantViolation(what)


class Interned(Generic[T]):
    """Values by number; equal keys get equal numbers."""

    def __init__(self) -> None:
        self.values: list[T] = []
        self._numbers: dict[Hashable, int] = {}

    def number(self, key: Hashable, value: T) -> int:
        """The number of `key`, whose first `value` is kept."""
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.values)
            self.values.append(value)
        return found


class MemberStream(NamedTuple):
    """A member's stream: the trainer's pod it leads to, and the messages under way (their numbers).

    `registered`: its Hello has arrived. `broken`: what is on its way to the member may be lost;
    a stream that the coordinator closed brings that first.
    """

    pod: int
    boot: int
    registered: bool
    state: int
    broken: bool
    up: tuple[int, ...]
    down: tuple[int, ...]


class AbandonedStream(NamedTuple):
    """A stream that its member has left, and what the coordinator may still read of it.

    `known`: its Hello had arrived, so that its end is a loss.
    """

    member: MemberId
    pod: int
    known: bool
    up: tuple[int, ...]


class RolloutSlot(NamedTuple):
    """A pod of a rollout: its process (None between two), streams, number of processes so far."""

    process: int | None
    stream: MemberStream | None
    remains: tuple[AbandonedStream, ...]
    starts: int


class TrainerPod(NamedTuple):
    """A pod of the trainer: coordinator, own sender and its replies, last version number."""

    machine: int
    alive: bool
    sender: int
    replies: tuple[int, ...]
    last: int


class GroupState(NamedTuple):
    """Everything. `named`: which trainer's pod each epoch so far names."""

    trainers: tuple[TrainerPod, ...]
    slots: tuple[RolloutSlot, ...]
    named: tuple[int, ...]
    faults: int
    versions: int


@dataclass(frozen=True, slots=True)
class MemberProcess:
    """A member's machine, the slow work that it waits for, and what really happened to it.

    `staged` is what was received whole, with its session (None: fetched); `joined` and `sent` are
    the join and the transfer that it got through last; `leader`: whose session it follows (the
    trainer's pod and boot).
    """

    machine: MemberMachine
    joining: SessionId | None = None
    transfer: tuple[SessionId, Version] | None = None
    applies: tuple[tuple[Version, SessionId | None], ...] = ()
    fetches: tuple[Version, ...] = ()
    joined: SessionId | None = None
    sent: tuple[SessionId, Version] | None = None
    staged: tuple[SessionId | None, Version] | None = None
    leader: tuple[int, int] | None = None
