"""Forming sessions: all seats acknowledge PREPARE, then JOIN, and receive SessionReady."""

from collections.abc import Sequence
from enum import StrEnum

from rollcall_protocol.membership.coordinator_effects import (
    CoordinatorEffect,
    ProtocolTimeouts,
    SendMessage,
    SessionFormed,
)
from rollcall_protocol.membership.member_table import MemberRecord
from rollcall_protocol.membership.sender_seats import SenderSeats
from rollcall_protocol.wire.ids import MemberId, SessionId
from rollcall_protocol.wire.job_snapshot import SessionCause, SessionReport
from rollcall_protocol.wire.messages import AckPhase, Join, Prepare, Seat, SessionReady

MAX_ENGINE_FAILURES = 3  # in a row, before the members that did not acknowledge are left out


class FormationPhase(StrEnum):
    """How far the session is formed; PREPARE and JOIN are acknowledged by each seat."""

    NONE = "none"
    PREPARE = AckPhase.PREPARE.value
    JOIN = AckPhase.JOIN.value
    STABLE = "stable"


class SessionFormation:
    """The session of one sync group: its id, its seats, and the phase of forming it.

    Which members get a seat, and when a session is formed, is decided by `CoordinatorMachine`.

    `session` is the newest id, `seated` are the receivers in it (the senders' seats come before
    theirs), `waiting` the members that have not acknowledged the phase, `due` is when gathered
    joins form a session. `roster_epoch` is the newest epoch whose roster a usable session has stood
    for: that of its id, or a later one that left the seats as they are. Times are seconds on the
    machine's clock.
    """

    def __init__(
        self, *, boot: int, sender: Seat, senders: int, timeouts: ProtocolTimeouts
    ) -> None:
        self.session: SessionId | None = None
        self.senders = SenderSeats(sender, expected=senders)
        self.seated: tuple[MemberId, ...] = ()
        self.phase = FormationPhase.NONE
        self.waiting: set[MemberId] = set()
        self.deadline: float | None = None
        self.due: float | None = None
        self.roster_epoch: int | None = None
        self.rebuilds = 0
        self._boot, self._timeouts = boot, timeouts
        self._failures = 0
        self._began: tuple[float, SessionCause, str] | None = None

    @property
    def busy(self) -> bool:
        """Whether acknowledgements of PREPARE or JOIN are awaited."""
        return self.phase in {FormationPhase.PREPARE, FormationPhase.JOIN}

    @property
    def participants(self) -> tuple[MemberId, ...]:
        """All members of the session in the order of ranks: senders, then receivers."""
        return (*self.senders.members, *self.seated)

    @property
    def silent(self) -> set[MemberId]:
        """Receivers that have not acknowledged the phase."""
        return self.waiting - set(self.senders.members)

    def begin(
        self,
        epoch: int,
        members: Sequence[MemberRecord],
        now: float,
        *,
        cause: SessionCause,
        detail: str,
    ) -> list[SendMessage]:
        """Begin the next attempt with these receivers; nothing is sent while a sender is missing.

        The report of the session has the time and the cause of the first attempt since the last
        session that was usable.
        """
        last = self.session
        attempt = last.attempt + 1 if last is not None and last.epoch == epoch else 1
        self.session = SessionId(epoch, self._boot, attempt)
        self.seated = tuple(member.id for member in members)
        self.phase, self.due, self.deadline = FormationPhase.NONE, None, None
        self._began = self._began or (now, cause, detail)
        if not self.senders.complete:
            return []
        senders = self.senders.seats
        seats = (*senders, *(member.seat() for member in members))
        deadline = now + self._timeouts.ack_timeout
        prepare = Prepare(self.session, seats, len(senders))
        return self._ask(FormationPhase.PREPARE, prepare, deadline)

    def awaits(self, member: MemberId, phase: AckPhase) -> bool:
        """Whether this acknowledgement counts."""
        return self.busy and phase.value == self.phase.value and member in self.waiting

    def acknowledged(self, member: MemberId) -> bool:
        """Note an acknowledgement; True when it was the phase's last one."""
        self.waiting.discard(member)
        return not self.waiting

    def join(self, session: SessionId, now: float) -> list[SendMessage]:
        """All have acknowledged PREPARE: every seat joins, before any of them is awaited."""
        deadline = now + self._timeouts.join_timeout
        return self._ask(FormationPhase.JOIN, Join(session), deadline)

    def complete(self, session: SessionId, now: float) -> list[CoordinatorEffect]:
        """All have joined: the session is usable."""
        self.phase, self.deadline, self._failures = FormationPhase.STABLE, None, 0
        since, cause, detail = self._began or (now, SessionCause.NEW_ROSTER, "")
        self._began = None
        self.rebuilds += 1
        self.roster_epoch = session.epoch
        report = SessionReport(session, cause, len(self.seated) + 1, now - since, detail)
        ready = SessionReady(session)
        return [
            *(SendMessage(member, ready) for member in self.participants),
            SessionFormed(report),
        ]

    def keep(self, epoch: int) -> None:
        """The usable session has the seats that the roster of `epoch` asks for: it stands."""
        self.roster_epoch, self.due = epoch, None

    def engine_failed(self) -> bool:
        """Note a failure of the engine; True with the third in a row: members are excluded."""
        self._failures += 1
        if self._failures < MAX_ENGINE_FAILURES:
            return False
        self._failures = 0
        return True

    def _ask(
        self, phase: FormationPhase, message: Prepare | Join, deadline: float
    ) -> list[SendMessage]:
        self.phase, self.deadline = phase, deadline
        self.waiting = set(self.participants)
        return [SendMessage(member, message) for member in self.participants]
