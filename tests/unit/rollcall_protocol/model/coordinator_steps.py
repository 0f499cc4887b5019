"""Trainers' pods: each step of a coordinator's machine, once for every state it can be in.

All waits last one unit of a clock that stands still: an armed deadline is always at 1. Letting one
pass means setting it to 0, so that any deadline may pass before any other. Bounds do not stretch.
"""

from collections.abc import Callable

from rollcall_protocol.membership.coordinator_effects import (
    CoordinatorEffect,
    ProtocolTimeouts,
    RosterRefusedError,
    SendMessage,
)
from rollcall_protocol.membership.coordinator_machine import CoordinatorMachine
from rollcall_protocol.wire.ids import MemberId
from rollcall_protocol.wire.job_snapshot import MemberState
from rollcall_protocol.wire.messages import Ack, AckPhase, Seat
from rollcall_protocol.wire.roster import EpochCause, Roster, RosterMember
from rollcall_protocol.wire.weight_manifest import WeightManifest
from tests.unit.rollcall_protocol.model.canonical_form import clone, key
from tests.unit.rollcall_protocol.model.state import Interned, require

TIMEOUTS = ProtocolTimeouts(
    settle=1, ack_timeout=1, join_timeout=1, stage_timeout=1, commit_timeout=1, stretch_limit=1
)
MANIFEST = WeightManifest(tensors=(), total_bytes=0, bucket_bytes=1, digests=())

Event = tuple[object, ...]
Outcome = tuple[int, tuple[CoordinatorEffect, ...]]


def trainer_uid(pod: int) -> str:
    """Of the trainer's `pod`-th pod."""
    return f"trainer-{pod}"


def make_roster(epoch: int, pod: int, slots: tuple[int, ...]) -> Roster:
    """What the operator writes: rollout pods by number."""
    members = tuple(RosterMember(f"uid-{s}", f"r{s}", f"ip-{s}", "pool") for s in slots)
    uid = trainer_uid(pod)
    return Roster("job", "default", epoch, uid, EpochCause.MEMBERS_JOINED, members)


class CoordinatorSteps:
    """Interned machines and their steps. Raises InvariantViolation when a step breaks an invariant.

    `allowed` gives the pods' uids of the roster that the operator wrote for an epoch.
    """

    def __init__(self, *, max_staleness: int, allowed: Callable[[int], frozenset[str]]) -> None:
        self._max_staleness, self._allowed = max_staleness, allowed
        self._known: Interned[CoordinatorMachine] = Interned()
        self._steps: dict[tuple[int, Event], Outcome] = {}
        self._deadlines: dict[int, tuple[str, ...]] = {}
        self._beliefs: dict[int, dict[MemberId, tuple[object, bool]]] = {}

    def __len__(self) -> int:
        return len(self._known.values)

    def start(self, pod: int, boot: int, since_epoch: int | None) -> int:
        """A new incarnation of a trainer's pod."""
        member = MemberId(trainer_uid(pod), f"b{boot}")
        machine = CoordinatorMachine(
            job_uid="job",
            group="default",
            boot=boot,
            since_epoch=since_epoch,
            sender=Seat(member, f"ip-{trainer_uid(pod)}", ""),
            fallback_donor="trainer:7100",
            timeouts=TIMEOUTS,
            max_staleness=self._max_staleness,
        )
        return self._number(machine)

    def get(self, number: int) -> CoordinatorMachine:
        """The machine; never to be changed."""
        return self._known.values[number]

    def step(self, number: int, event: Event) -> Outcome:
        """The machine after `event`, and its effects. A refused roster has neither.

        Events: the names of the machine's methods with their arguments; ("pass", deadline).
        """
        found = self._steps.get((number, event))
        if found is None:
            machine = clone(self._known.values[number])
            try:
                effects = tuple(self._run(machine, event))
            except RosterRefusedError:
                effects = ()
                require(key(machine) == key(self.get(number)), "a refused roster had an effect")
            self._check(self.get(number), machine, event, effects)
            found = self._steps[number, event] = self._number(machine), effects
        return found

    def deadlines(self, number: int) -> tuple[str, ...]:
        """What the machine waits for, by name."""
        found = self._deadlines.get(number)
        if found is None:
            found = self._deadlines[number] = tuple(_armed(self.get(number)))
        return found

    def beliefs(self, number: int) -> dict[MemberId, tuple[object, bool]]:
        """Version that each member is thought to hold, and whether it is in sync."""
        found = self._beliefs.get(number)
        if found is None:
            known = self.get(number).members.by_pod.values()
            found = {m.id: (m.held, m.state is MemberState.IN_SYNC) for m in known}
            self._beliefs[number] = found
        return found

    def _number(self, machine: CoordinatorMachine) -> int:
        return self._known.number(key(machine), machine)

    def _run(self, machine: CoordinatorMachine, event: Event) -> list[CoordinatorEffect]:
        name, *arguments = event
        if name == "pass":
            _expire(machine, str(arguments[0]))
            return machine.tick(0.0)
        if name == "publish":
            arguments.append(MANIFEST)
        effects: list[CoordinatorEffect] = getattr(machine, str(name))(*arguments, 0.0)
        return effects

    def _check(
        self,
        before: CoordinatorMachine,
        after: CoordinatorMachine,
        event: Event,
        effects: tuple[CoordinatorEffect, ...],
    ) -> None:
        message = event[2] if event[0] == "receive" else None
        if (
            isinstance(message, Ack)
            and message.phase is not AckPhase.COMMIT
            and message.session != before.session
        ):
            unmoved = key(before) == key(after) and not effects
            require(unmoved, f"4: {message} counted in session {before.session}")
        if before.session is not None:
            forward = after.session is not None and after.session >= before.session
            require(forward, f"2: a coordinator went back to session {after.session}")
        _check_waits(after)
        roster = after.members.roster
        if roster is None:
            sent = [effect for effect in effects if isinstance(effect, SendMessage)]
            require(not sent, f"1: {sent} without a roster")
            return
        uid = after.sender.pod_uid
        allowed = self._allowed(roster.epoch)
        require(roster.coordinator_uid == uid, "1: follows a roster that names another coordinator")
        require(after.members.listed == allowed, f"1: another roster for epoch {roster.epoch}")
        for effect in effects:
            if isinstance(effect, SendMessage) and effect.to.pod_uid not in {*allowed, uid}:
                what = type(effect.message).__name__
                require(False, f"5: {what} for {effect.to}, which is not on the roster")


def _check_waits(machine: CoordinatorMachine) -> None:
    """8: each wait has a deadline and awaits members of the session."""
    formation, publisher = machine.formation, machine.publisher
    there = {*machine.senders, *machine.seated}
    if formation.busy:
        require(formation.deadline is not None, "8: forms a session without a deadline")
        require(bool(formation.waiting), "8: forms a session and awaits no member")
        require(formation.waiting <= there, "8: forms a session and awaits a member without a seat")
    if publisher.staging or publisher.committing:
        require(publisher.deadline is not None, "8: publishes without a deadline")
        require(bool(publisher.waiting), "8: publishes and awaits no member")
        require(publisher.waiting <= there, "8: publishes and awaits a member without a seat")


def _armed(machine: CoordinatorMachine) -> list[str]:
    names = []
    if machine.formation.deadline is not None:
        names.append("forming")
    if machine.publisher.deadline is not None:
        names.append("publication")
    waiting = machine.members.by_pod.items()
    names += sorted(uid for uid, member in waiting if member.deadline is not None)
    if machine.formation.due is not None and not machine.joins_wait:
        names.append("settle")
    return names


def _expire(machine: CoordinatorMachine, name: str) -> None:
    if name == "forming":
        machine.formation.deadline = 0.0
    elif name == "settle":
        machine.formation.due = 0.0
    elif name == "publication":
        assert machine.publisher.publication is not None
        machine.publisher.publication.deadline = 0.0
    else:
        machine.members.by_pod[name].deadline = 0.0
