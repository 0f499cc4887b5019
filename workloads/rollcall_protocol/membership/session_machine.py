"""How sessions form and who is left out: the half of the coordinator's machine below publishing."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from rollcall_protocol.membership.coordinator_effects import (
    CloseStream,
    CoordinatorEffect,
    MemberSuspected,
    ProtocolTimeouts,
    SendMessage,
    SessionFormed,
)
from rollcall_protocol.membership.member_table import MemberRecord, MemberTable
from rollcall_protocol.membership.sender_seats import SenderSeats
from rollcall_protocol.membership.session_formation import (
    MAX_ENGINE_FAILURES,
    FormationPhase,
    SessionFormation,
)
from rollcall_protocol.wire.ids import MemberId, SessionId
from rollcall_protocol.wire.job_snapshot import (
    MemberState,
    SessionCause,
    SessionReport,
    SuspicionCause,
)
from rollcall_protocol.wire.messages import CaughtUp, Hello, Join, Prepare, Seat, SessionReady

if TYPE_CHECKING:
    from rollcall_protocol.membership.version_publication import VersionPublication


class SessionMachine(ABC):
    """Members and sessions of one sync group; what it decides gathers in `_out`.

    Forming a session is PREPARE, JOIN, ready. A loss forms the next attempt at once with those who
    are left; a join waits for `settle`, so that a scale-up is one session.

    `since_epoch` is the epoch that first named this pod as coordinator (kept over restarts of the
    container); `boot` counts those restarts. `sender` is the trainer's own seat, always rank 0;
    with several `senders` the trainer's other ranks take the seats after it, once all are there.
    """

    def __init__(
        self,
        *,
        job_uid: str,
        group: str,
        boot: int,
        sender: Seat,
        fallback_donor: str,
        timing: ProtocolTimeouts,
        max_staleness: int,
        since_epoch: int | None = None,
        senders: int = 1,
    ) -> None:
        self.boot, self.sender, self.timing = boot, sender.member, timing
        self._senders = SenderSeats(sender, expected=senders)
        self.since_epoch = since_epoch
        self.members = MemberTable(
            job_uid=job_uid,
            group=group,
            coordinator_uid=sender.member.pod_uid,
            max_staleness=max_staleness,
            fallback_donor=fallback_donor,
            catch_up_timeout=timing.stage_timeout,
        )
        self.session: SessionId | None = None
        self.seated: tuple[MemberId, ...] = ()  # receivers, without the sender
        self.last_report: SessionReport | None = None
        self.rebuilds = 0
        self._formation = SessionFormation()
        self._publication: VersionPublication | None = None
        self._out: list[CoordinatorEffect] = []

    @property
    def senders(self) -> tuple[MemberId, ...]:
        """The trainer's seats, in the order of ranks."""
        return self._senders.members

    @property
    def forming(self) -> FormationPhase:
        """Where the session stands."""
        return self._formation.phase

    # --- what publishing does to it ------------------------------------------------------------

    @abstractmethod
    def _stage(self, now: float) -> None:
        """A session is usable: send it the version that waits, if one does."""

    @abstractmethod
    def _check_commit(self) -> None:
        """Members may have left: see whether everybody who is to commit a version has."""

    # --- forming sessions ----------------------------------------------------------------------

    @property
    def _busy(self) -> bool:
        """Joins do not interrupt a session that is being formed nor a version being sent."""
        staging = self._publication is not None and self._publication.staging
        return staging or self._formation.busy

    def _settle(self, now: float) -> list[CoordinatorEffect]:
        """After every event: let newcomers in, drop the overdue, form a session for joins."""
        self._out += self.members.admit_waiting(now, but=set(self.seated))
        overdue = self.members.overdue(now)
        if overdue:
            late, bound = SuspicionCause.ACK_TIMEOUT, self.timing.stage_timeout
            self._suspect(overdue, "did not catch up in time", now, late, bound=bound)
        self._gather(now)
        self._check_commit()
        out, self._out = self._out, []
        return out

    def _gather(self, now: float) -> None:
        roster, formation = self.members.roster, self._formation
        if roster is None or self._busy or not self._senders.complete:
            return
        eligible = self._eligible()
        wanted = {member.id for member in eligible}
        same_epoch = self.session is not None and self.session.epoch == roster.epoch
        if same_epoch and wanted == set(self.seated):
            formation.due = None
            return
        if formation.due is None:
            formation.due = now + self.timing.settle
        # Versions may come faster than `settle` passes: who was overtaken must not wait again.
        hurried = any(m.catch_ups > 1 and m.id not in self.seated for m in eligible)
        if now >= formation.due or len(wanted) == len(roster.members) or hurried:
            cause = SessionCause.MEMBER_CAUGHT_UP if same_epoch else SessionCause.NEW_ROSTER
            self._form(cause, "" if same_epoch else roster.cause.value, now)

    def _sender_joined(self, rank: int, hello: Hello, now: float) -> list[CoordinatorEffect]:
        old = self._senders.at(rank)
        refused = self._senders.enter(rank, hello)
        if not refused and old is not None and old != hello.member:
            self._out.append(CloseStream(old, "another life of its rank registered"))
        if refused:
            self._out.append(CloseStream(hello.member, refused))
            return self._settle(now)
        self.members.fallback_donor = self._senders.donors
        if self.session is not None:
            self._form(SessionCause.NEW_ROSTER, f"sender {rank} registered", now)
        return self._settle(now)

    def _form(self, cause: SessionCause, detail: str, now: float) -> None:
        roster, last = self.members.roster, self.session
        if roster is None:
            return
        attempt = last.attempt + 1 if last is not None and last.epoch == roster.epoch else 1
        self.session = SessionId(roster.epoch, self.boot, attempt)
        members = self._eligible()
        self.seated = tuple(member.id for member in members)
        self._formation.begin(cause, detail, now)
        if self._publication is not None:
            self._publication.interrupt(self.seated)
        if self._senders.complete:
            trainers = self._senders.seats
            seats = (*trainers, *(member.seat() for member in members))
            prepare = Prepare(self.session, seats, len(trainers))
            self._ask(FormationPhase.PREPARE, prepare, now + self.timing.ack_timeout)

    def _eligible(self) -> list[MemberRecord]:
        publication = self._publication
        committing = publication is not None and publication.committing
        return self.members.eligible(publication.waiting if publication and committing else set())

    def _ask(self, phase: FormationPhase, message: Prepare | Join, deadline: float) -> None:
        everybody = (*self.senders, *self.seated)
        self._formation.ask(phase, set(everybody), deadline)
        self._out += [SendMessage(member, message) for member in everybody]

    def _next_phase(self, session: SessionId, now: float) -> None:
        if self.forming is FormationPhase.PREPARE:
            self._ask(FormationPhase.JOIN, Join(session), now + self.timing.join_timeout)
            return
        self.rebuilds += 1
        report = self._formation.succeeded(session, len(self.seated) + 1, now)
        self.last_report = report
        self._out += [SendMessage(m, SessionReady(session)) for m in (*self.senders, *self.seated)]
        self._out.append(SessionFormed(report))
        self.members.settle_states(self.seated)
        if self._publication is not None:
            self._stage(now)

    def _forming_timed_out(self, now: float) -> None:
        silent = self._formation.waiting - set(self.senders)
        if self.forming is FormationPhase.PREPARE and silent:
            late, bound = SuspicionCause.ACK_TIMEOUT, self.timing.ack_timeout
            self._suspect(silent, "did not answer PREPARE in time", now, late, bound=bound)
        else:
            # A collective join blocks everybody, so silence accuses nobody: the next PREPARE,
            # which is not collective, tells who is stuck.
            self._engine_failed(f"{self.forming.value} timed out", now)

    def _engine_failed(self, error: str, now: float) -> None:
        accused = self._formation.waiting - set(self.senders) or set(self.seated)
        if self._formation.failed() and accused:
            reason = f"engine failed {MAX_ENGINE_FAILURES} times: {error}"
            self._suspect(accused, reason, now, SuspicionCause.ENGINE_ERROR)
        else:
            self._form(SessionCause.ENGINE_ERROR, error, now)

    # --- members -------------------------------------------------------------------------------

    def _on_caught_up(self, member: MemberRecord, message: CaughtUp) -> None:
        if member.state is not MemberState.CATCHING_UP:
            return
        member.deadline, member.reason = None, message.error
        if not message.error:
            member.held = message.version

    def _drop(
        self,
        member: MemberRecord,
        state: MemberState,
        reason: str,
        now: float,
        cause: SuspicionCause | None = None,
        *,
        since: float | None = None,
    ) -> None:
        if state is MemberState.SUSPECT and member.state is not state and cause is not None:
            self._out.append(MemberSuspected(member.id, cause, reason, since))
        member.out(state, reason, cause)
        if member.id in self.seated:
            told = f"{cause}: {reason}" if cause else reason
            self._form(SessionCause.MEMBER_LOST, f"{member.hello.pod}: {told}", now)

    def _suspect(
        self,
        members: set[MemberId],
        reason: str,
        now: float,
        cause: SuspicionCause,
        *,
        bound: float | None = None,
    ) -> None:
        """Exclude `members`. `bound`: the time that they had for what they did not do."""
        since = None if bound is None else now - bound
        # All are marked before a session is formed, so that a batch of losses costs one attempt.
        known = [found for member in sorted(members) if (found := self.members.find(member))]
        for member in known:
            member.ready = False
        for member in known:
            self._out.append(CloseStream(member.id, reason))
            self._drop(member, MemberState.SUSPECT, reason, now, cause, since=since)
