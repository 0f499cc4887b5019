"""Members' processes: each step of a member's machine, once for every state it can be in."""

from dataclasses import replace

from rollcall_protocol.membership.member_machine import (
    AbortEngine,
    ApplyVersion,
    FetchVersion,
    JoinEngine,
    MemberEffect,
    MemberMachine,
    SendToCoordinator,
    TransferVersion,
)
from rollcall_protocol.wire.ids import MemberId
from rollcall_protocol.wire.messages import (
    CatchUp,
    MemberMessage,
    Prepare,
    SessionMessage,
    SessionRefused,
)
from tests.unit.rollcall_protocol.model.canonical_form import clone, key
from tests.unit.rollcall_protocol.model.state import Interned, MemberProcess, require

Replies = tuple[MemberMessage, ...]
Event = tuple[object, ...]


class MemberSteps:
    """Interned processes and their steps. A step that breaks one raises InvariantViolation.

    `alone`: completed joins and transfers are not kept, since no other member asks for them.
    """

    def __init__(self, *, alone: bool = False) -> None:
        self._alone = alone
        self._known: Interned[tuple[MemberId, MemberProcess]] = Interned()
        self._steps: dict[tuple[int, Event], tuple[int, Replies]] = {}

    def __len__(self) -> int:
        return len(self._known.values)

    def start(self, member: MemberId) -> int:
        """A new process."""
        return self._number(member, MemberProcess(MemberMachine()))

    def id(self, number: int) -> MemberId:
        """Who it is."""
        return self._known.values[number][0]

    def get(self, number: int) -> MemberProcess:
        """Its state; never to be changed."""
        return self._known.values[number][1]

    def step(self, number: int, event: Event) -> tuple[int, Replies]:
        """The process after `event`, and its replies to the coordinator.

        Events: ("receive", message, leader), ("joined", error), ("moved", error, own_fault),
            ("applied", which, error), ("fetched", which, error), ("late", session, version).
        """
        found = self._steps.get((number, event))
        if found is None:
            member, before = self._known.values[number]
            after, replies = _step(before, event)
            _check(before, after)
            found = self._steps[number, event] = self._number(member, after), replies
        return found

    def _number(self, member: MemberId, process: MemberProcess) -> int:
        if self._alone:
            process = replace(process, joined=None, sent=None)
        rest = (
            process.joining,
            process.transfer,
            process.applies,
            process.fetches,
            process.joined,
            process.sent,
            process.staged,
            process.leader,
        )
        return self._known.number((member, key(process.machine), rest), (member, process))


def _step(before: MemberProcess, event: Event) -> tuple[MemberProcess, Replies]:
    machine = clone(before.machine)
    after = replace(before, machine=machine)
    kind = event[0]
    if kind == "receive":
        _, message, leader = event
        return _receive(before, after, message, leader)  # type: ignore[arg-type]
    if kind == "late":  # the outcome of work that an abort has ended
        session, version = event[1], event[2]
        late = machine.joined(session) + machine.staged(session, version)  # type: ignore[arg-type]
        unmoved = key(machine) == key(before.machine) and not late
        require(unmoved, f"4: work of {session} had an effect on a member of {machine.session}")
        return after, ()
    if kind == "joined":
        session, error = before.joining, str(event[1])
        assert session is not None
        after = replace(after, joining=None, joined=before.joined if error else session)
        return _perform(after, machine.joined(session, error=error))
    if kind == "moved":
        moved, error = before.transfer, str(event[1])
        assert moved is not None
        staged = None if error else moved
        after = replace(after, transfer=None, staged=staged, sent=before.sent if error else moved)
        return _perform(after, machine.staged(*moved, error=error, own_fault=bool(event[2])))
    which, error = int(str(event[1])), str(event[2])
    if kind == "applied":
        version, of = before.applies[which]
        after = replace(after, applies=before.applies[:which] + before.applies[which + 1 :])
        return _perform(after, machine.applied(version, of, error=error))
    version = before.fetches[which]
    after = replace(after, fetches=before.fetches[:which] + before.fetches[which + 1 :])
    if not error:
        after = replace(after, staged=(None, version))
    return _perform(after, machine.fetched(version, error=error))


def _receive(
    before: MemberProcess, after: MemberProcess, message: SessionMessage, leader: tuple[int, int]
) -> tuple[MemberProcess, Replies]:
    session, machine = before.machine.session, after.machine
    effects = machine.receive(message)
    if isinstance(message, CatchUp):
        return _perform(after, effects)
    if session is not None and message.session < session:
        quiet = all(
            isinstance(e, SendToCoordinator) and isinstance(e.message, SessionRefused)
            for e in effects
        )
        require(
            quiet and key(before.machine) == key(machine),
            f"4: {type(message).__name__} of {message.session} had an effect on a member of"
            f" {session}",
        )
    elif isinstance(message, Prepare) and message.session == session:
        require(before.leader == leader, f"1: two coordinators lead session {session}")
    if machine.session != session:
        require(isinstance(message, Prepare), "4: a session began without PREPARE")
        after = replace(after, leader=leader)
    return _perform(after, effects)


def _perform(process: MemberProcess, effects: list[MemberEffect]) -> tuple[MemberProcess, Replies]:
    replies: list[MemberMessage] = []
    for effect in effects:
        if isinstance(effect, SendToCoordinator):
            replies.append(effect.message)
        elif isinstance(effect, AbortEngine):
            process = replace(process, joining=None, transfer=None)
        elif isinstance(effect, JoinEngine):
            require(effect.session == process.machine.session, "4: joins an older session")
            process = replace(process, joining=effect.session)
        elif isinstance(effect, TransferVersion):
            require(effect.session == process.machine.session, "4: a transfer of an older session")
            process = replace(process, transfer=(effect.session, effect.version))
        elif isinstance(effect, ApplyVersion):
            # Whatever session brought it: two sets of weights never share a version.
            whole = process.staged is not None and process.staged[1] == effect.version
            require(whole, f"3: serves {effect}, staged is {process.staged}")
            applies = (*process.applies, (effect.version, effect.session))
            process = replace(process, applies=applies, staged=None)
        elif isinstance(effect, FetchVersion):
            process = replace(process, fetches=(*process.fetches, effect.version))
    return process, tuple(replies)


def _check(before: MemberProcess, after: MemberProcess) -> None:
    old, new = before.machine, after.machine
    if old.session is not None:
        forward = new.session is not None and new.session >= old.session
        require(forward, f"2: a member's session went back from {old.session} to {new.session}")
    if old.held is not None:
        forward = new.held is not None and new.held >= old.held
        require(forward, f"2: a member's version went back from {old.held} to {new.held}")
