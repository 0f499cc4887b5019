"""Forming sessions: all seats acknowledge PREPARE, then JOIN, and receive SessionReady.

The trainer's own seats are rank 0, and with several senders its other ranks.
"""

from collections.abc import Sequence
from enum import StrEnum

from rollcall_protocol.membership.coordinator_effects import (
    CoordinatorEffect,
    SendMessage,
    SessionFormed,
)
from rollcall_protocol.membership.member_table import MemberRecord
from rollcall_protocol.membership.stretched_bounds import StretchedBound, WaitBounds
from rollcall_protocol.pod_contract import PARTS_PORT
from rollcall_protocol.wire.addresses import host_port
from rollcall_protocol.wire.ids import MemberId, SessionId
from rollcall_protocol.wire.job_snapshot import SessionCause, SessionReport
from rollcall_protocol.wire.messages import AckPhase, Hello, Join, Prepare, Seat, SessionReady

MAX_ENGINE_FAILURES = 3  # in a row, before the members that did not acknowledge are left out


class SenderSeats:
    """The trainer ranks that send, in the order of ranks; rank 0 (`first`) is always present."""

    def __init__(self, first: Seat, *, expected: int) -> None:
        self._expected = expected
        self._seats: dict[int, Seat] = {0: first}
        self._ports = {0: PARTS_PORT}

    @property
    def complete(self) -> bool:
        """Whether all senders are registered; no session is formed before."""
        return len(self._seats) == self._expected

    @property
    def seats(self) -> tuple[Seat, ...]:
        """Seats of the registered senders."""
        return tuple(seat for _, seat in sorted(self._seats.items()))

    @property
    def members(self) -> tuple[MemberId, ...]:
        """Members of these seats."""
        return tuple(seat.member for seat in self.seats)

    @property
    def donors(self) -> str:
        """Addresses that together hold all parts of a version: the last donor of a newcomer."""
        return "+".join(
            host_port(seat.address, self._ports[rank]) for rank, seat in sorted(self._seats.items())
        )

    def at(self, rank: int) -> MemberId | None:
        """The member at `rank`."""
        return self._seats[rank].member if rank in self._seats else None

    def enter(self, rank: int, hello: Hello) -> str:
        """Give `rank` to a sender; returns the reason if that is refused, else an empty string."""
        if not 0 < rank < self._expected:
            return f"sender {rank} of {self._expected}"
        self._seats[rank] = Seat(hello.member, hello.address, hello.descriptor)
        self._ports[rank] = hello.weights_port
        return ""

    def leave(self, member: MemberId) -> int | None:
        """Free the rank of `member` and return it; None for rank 0 and for a member without one."""
        for rank, seat in self._seats.items():
            if rank and seat.member == member:
                del self._seats[rank]
                return rank
        return None


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
    for: that of its id, or a later one that left the seats as they are. `asked_at` is when the
    phase began. Times are seconds on the machine's clock.
    """

    def __init__(self, *, boot: int, sender: Seat, senders: int, bounds: WaitBounds) -> None:
        self.session: SessionId | None = None
        self.senders = SenderSeats(sender, expected=senders)
        self.seated: tuple[MemberId, ...] = ()
        self.phase = FormationPhase.NONE
        self.waiting: set[MemberId] = set()
        self.deadline: float | None = None
        self.due: float | None = None
        self.roster_epoch: int | None = None
        self.rebuilds = 0
        self.asked_at = 0.0
        self._boot, self._bounds = boot, bounds
        self._failures = 0
        self._began: tuple[float, SessionCause, str] | None = None

    @property
    def busy(self) -> bool:
        """Whether acknowledgements of PREPARE or JOIN are awaited."""
        return self.phase in {FormationPhase.PREPARE, FormationPhase.JOIN}

    @property
    def _bound(self) -> StretchedBound:
        bounds = self._bounds
        return bounds.join if self.phase is FormationPhase.JOIN else bounds.prepare

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
        prepare = Prepare(self.session, seats, len(senders))
        return self._ask(FormationPhase.PREPARE, prepare, now)

    def awaits(self, member: MemberId, phase: AckPhase) -> bool:
        """Whether this acknowledgement counts."""
        return self.busy and phase.value == self.phase.value and member in self.waiting

    def acknowledged(self, member: MemberId) -> bool:
        """Note an acknowledgement; True when it was the phase's last one."""
        self.waiting.discard(member)
        return not self.waiting

    def join(self, session: SessionId, now: float) -> list[SendMessage]:
        """All have acknowledged PREPARE: every seat joins, before any of them is awaited."""
        self._bounds.prepare.took(now - self.asked_at)
        return self._ask(FormationPhase.JOIN, Join(session, self._bounds.engine_stretch), now)

    def complete(self, session: SessionId, now: float) -> list[CoordinatorEffect]:
        """All have joined: the session is usable."""
        self._bounds.join.took(now - self.asked_at)
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

    def timed_out(self) -> None:
        """The phase was not acknowledged within its bound: the next one has longer."""
        self._bound.passed()

    def seat_failed(self, now: float) -> bool:
        """A seat could not do its part; whether for lack of time: it took a while."""
        return self._bound.failed(now - self.asked_at)

    def engine_failed(self) -> bool:
        """Note a failure of the engine; True with the third in a row: members are excluded."""
        self._failures += 1
        if self._failures < MAX_ENGINE_FAILURES:
            return False
        self._failures = 0
        return True

    def _ask(self, phase: FormationPhase, message: Prepare | Join, now: float) -> list[SendMessage]:
        self.phase, self.asked_at = phase, now
        self.deadline = now + self._bound.seconds
        self.waiting = set(self.participants)
        return [SendMessage(member, message) for member in self.participants]
