"""The coordinator's state machine: which members sit in the session, and what each failure costs.

Events go in as method calls with the time (seconds, any monotonic clock), effects come out as
values; a driver does the I/O. The machine decides between its parts: `MemberTable` (who registered,
and in which state), `SessionFormation` (PREPARE, JOIN) and `VersionPublisher` (STAGE, COMMIT).
"""

from rollcall_protocol.membership.coordinator_effects import (
    CloseStream,
    CoordinatorEffect,
    CoordinatorSuperseded,
    FalseJoin,
    MemberSuspected,
    ProtocolTimeouts,
    SessionTimedOut,
    VersionPublished,
    WrongWeightsReported,
)
from rollcall_protocol.membership.join_claims import JoinClaims
from rollcall_protocol.membership.member_table import (
    MAX_ACCUSERS,
    MAX_REASON,
    MemberRecord,
    MemberTable,
)
from rollcall_protocol.membership.session_formation import (
    MAX_ENGINE_FAILURES,
    FormationPhase,
    SessionFormation,
)
from rollcall_protocol.membership.session_losses import SessionLosses
from rollcall_protocol.membership.stretched_bounds import WaitBounds
from rollcall_protocol.membership.version_publisher import VersionPublisher
from rollcall_protocol.wire.ids import MAX_VERSION_NUMBER, Lineage, MemberId, SessionId, Version
from rollcall_protocol.wire.job_snapshot import (
    MemberReport,
    MemberState,
    SessionCause,
    SuspicionCause,
    TimeBound,
)
from rollcall_protocol.wire.messages import (
    Ack,
    AckPhase,
    CaughtUp,
    Draining,
    Hello,
    MachineMessage,
    Seat,
    SessionRefused,
    WeightDelta,
)
from rollcall_protocol.wire.roster import EpochCause, Roster
from rollcall_protocol.wire.weight_manifest import WeightManifest


class CoordinatorMachine:
    """One sync group: its members, its session, and the version that is being published.

    A loss forms the next attempt of the session at once with the members that are left; joins wait
    for `settle` seconds, so that a scale-up is one session. A version is staged by the session's
    members and committed when each of them holds it whole.

    `since_epoch` is the epoch that first named this pod as coordinator (kept over restarts of the
    container); `boot` counts those restarts. `sender` is the trainer's own seat, always rank 0;
    with several `senders` the trainer's other ranks take the seats after it, and no session is
    formed before all of them are registered.
    """

    def __init__(
        self,
        *,
        job_uid: str,
        group: str,
        boot: int,
        sender: Seat,
        fallback_donor: str,
        timeouts: ProtocolTimeouts,
        max_staleness: int,
        since_epoch: int | None = None,
        senders: int = 1,
    ) -> None:
        self.boot, self.sender, self.timeouts = boot, sender.member, timeouts
        self.bounds = WaitBounds(timeouts)
        self.since_epoch = since_epoch
        self.members = MemberTable(
            job_uid=job_uid,
            group=group,
            coordinator_uid=sender.member.pod_uid,
            max_staleness=max_staleness,
            fallback_donor=fallback_donor,
            catch_up=self.bounds.catch_up,
        )
        self.formation = SessionFormation(
            boot=boot, sender=sender, senders=senders, bounds=self.bounds
        )
        self.publisher = VersionPublisher(self.bounds)
        self.losses = SessionLosses()
        self._claims = JoinClaims()
        self._effects: list[CoordinatorEffect] = []

    # --- events --------------------------------------------------------------------------------

    def push_roster(self, roster: Roster, now: float) -> list[CoordinatorEffect]:
        """Take a roster; raises RosterRefusedError for an older, contradicting or foreign one."""
        if not self.members.take_roster(roster):
            return []
        if self.since_epoch is None:
            self.since_epoch = roster.epoch
        gone = [seat for seat in self.seated if seat.pod_uid not in self.members.listed]
        if gone:
            if roster.cause is EpochCause.MEMBER_LOST:
                left = SuspicionCause.LEFT_ROSTER
                self._effects += [MemberSuspected(seat, left, "left the roster") for seat in gone]
            self._form(SessionCause.NEW_ROSTER, roster.cause.value, now)
        return self._settle(now)

    def hello(self, hello: Hello, now: float) -> list[CoordinatorEffect]:
        """A member opened its stream. Another incarnation of the same pod is lost by that.

        Which of two incarnations is the later one cannot be known: the Hello of a dead one may be
        read last. So the other's stream is closed; the one that is alive registers again.
        """
        if not self.members.belongs(hello):
            foreign = "belongs to another job or sync group"
            self._effects.append(CloseStream(hello.member, foreign))
            return self._settle(now)
        if hello.sender is not None:
            self._sender_joined(hello.sender, hello, now)
            return self._settle(now)
        old = self.members.by_pod.get(hello.member.pod_uid)
        if old is not None:
            if old.id != hello.member:
                other = "another incarnation of its pod registered"
                self._effects.append(CloseStream(old.id, other))
            lost = SuspicionCause.CONNECTION_LOST
            self._drop(old, MemberState.SUSPECT, "registered again", now, cause=lost)
        self.members.absent.pop(hello.member.pod_uid, None)
        self.members.by_pod[hello.member.pod_uid] = MemberRecord(hello=hello, held=hello.held)
        return self._settle(now)

    def lost(
        self,
        member: MemberId,
        reason: str,
        now: float,
        *,
        cause: SuspicionCause = SuspicionCause.CONNECTION_LOST,
    ) -> list[CoordinatorEffect]:
        """The stream of `member` ended or its heartbeats stopped."""
        if cause is SuspicionCause.HEARTBEAT_MISSED and member in self.formation.participants:
            self._session_lost(TimeBound.SILENCE, f"{member}: {reason}", now)
        rank = self.formation.senders.leave(member)
        if rank is not None:
            self._effects.append(MemberSuspected(member, cause, reason))
            self._form(SessionCause.MEMBER_LOST, f"sender {rank}: {cause}: {reason}", now)
        known = self.members.find(member)
        if known is not None:
            leaving = known.state in {MemberState.DRAINING, MemberState.GONE}
            state = MemberState.GONE if leaving else MemberState.SUSPECT
            self._drop(known, state, reason, now, cause=cause)
            self.members.disconnected(known)
        return self._settle(now)

    def absent(self, pod_uid: str, reason: str, now: float) -> list[CoordinatorEffect]:
        """A pod of the roster has not registered in time; `reason` is how its agent answered."""
        if pod_uid in self.members.listed and pod_uid not in self.members.by_pod:
            self.members.absent[pod_uid] = reason
        return self._settle(now)

    def receive(
        self, sender: MemberId, message: MachineMessage, now: float
    ) -> list[CoordinatorEffect]:
        """A message of a member (or of the trainer's own sender)."""
        known = self.members.find(sender)
        if isinstance(message, Ack):
            if known is not None or sender in self.senders:
                self._on_ack(sender, message, now)
        elif known is None:
            pass  # of an older incarnation of the pod: without effect
        elif isinstance(message, CaughtUp):
            self._on_caught_up(known, message, now)
        elif isinstance(message, Draining):
            known.state, known.reason = MemberState.DRAINING, message.reason[:MAX_REASON]
        else:
            self._on_refused(sender, message, now)
        return self._settle(now)

    def exclude(
        self, member: MemberId, reason: str, now: float, *, cause: SuspicionCause
    ) -> list[CoordinatorEffect]:
        """What `member` sent cannot be true: it loses its seat, and its stream is closed."""
        self._suspect({member}, reason, now, cause=cause)
        return self._settle(now)

    def publish(
        self,
        version: Version,
        manifest: WeightManifest,
        now: float,
        *,
        delta: WeightDelta | None = None,
    ) -> list[CoordinatorEffect]:
        """Bring `version` to the session. One at a time; ends with VersionPublished."""
        self.publisher.queue(version, manifest, delta)
        if self.forming is FormationPhase.STABLE:
            self._stage(now)
        return self._settle(now)

    def tick(self, now: float) -> list[CoordinatorEffect]:
        """Act on deadlines that have passed."""
        if _passed(self.formation.deadline, now):
            self._forming_timed_out(now)
        if _passed(self.publisher.deadline, now):
            self._publication_timed_out(now)
        return self._settle(now)

    # --- what the driver reads -------------------------------------------------------------------

    @property
    def session(self) -> SessionId | None:
        """The session that is usable or being formed."""
        return self.formation.session

    @property
    def forming(self) -> FormationPhase:
        """How far the session is formed."""
        return self.formation.phase

    @property
    def formed(self) -> bool:
        """Whether a usable session has stood for the newest roster, also while it is rebuilt."""
        roster = self.members.roster
        return roster is not None and self.formation.roster_epoch == roster.epoch

    @property
    def senders(self) -> tuple[MemberId, ...]:
        """The trainer's seats, in the order of ranks."""
        return self.formation.senders.members

    @property
    def seated(self) -> tuple[MemberId, ...]:
        """The receivers of the session, in the order of ranks."""
        return self.formation.seated

    @property
    def current(self) -> Version | None:
        """The newest version that a COMMIT went out for."""
        return self.members.current

    @property
    def lineage(self) -> Lineage | None:
        """The lineage of versions that this incarnation of the trainer publishes."""
        return None if self.since_epoch is None else Lineage(self.since_epoch, self.boot)

    @property
    def newest(self) -> Version | None:
        """The version that is being published, or else the newest one that was."""
        publication = self.publisher.publication
        return publication.version if publication is not None else self.members.current

    @property
    def highest_number(self) -> int:
        """The highest version number that any member reported, -1 when none did.

        Numbers beyond MAX_VERSION_NUMBER do not count. A former incarnation's cannot be checked,
        and those that follow must stay small integers.
        """
        held = [member.held.number for member in self.members.by_pod.values() if member.held]
        return max((number for number in held if number <= MAX_VERSION_NUMBER), default=-1)

    @property
    def joins_wait(self) -> bool:
        """Whether a join has to wait: it interrupts neither a formation nor a transfer."""
        return self.publisher.staging or self.formation.busy

    def next_deadline(self) -> float | None:
        """When `tick` is due at the latest; None when nothing is awaited."""
        times = [self.formation.deadline, self.publisher.deadline]
        times += [member.deadline for member in self.members.by_pod.values()]
        if not self.joins_wait:
            times.append(self.formation.due)
        return min((time for time in times if time is not None), default=None)

    def serving(self, member: MemberId) -> bool:
        """Whether `member` may be given prompts."""
        known = self.members.find(member)
        return known is not None and known.state is MemberState.IN_SYNC

    def knows(self, pod_uid: str) -> bool:
        """Whether an incarnation of this pod has registered since the roster named it."""
        return pod_uid in self.members.by_pod

    def reports(self) -> tuple[MemberReport, ...]:
        """The state of all members on the roster, in the order of their pods' names."""
        return self.members.reports()

    # --- forming sessions ----------------------------------------------------------------------

    def _settle(self, now: float) -> list[CoordinatorEffect]:
        """After every event: let newcomers in, drop the overdue, form a session for joins."""
        self._effects += self.members.admit_waiting(now, but=set(self.seated))
        overdue = self.members.overdue(now)
        for member, error in self.members.errors(overdue).items():
            overdue.discard(member)
            reason = f"cannot use the weights: {error}"
            self._suspect({member}, reason, now, cause=SuspicionCause.ENGINE_ERROR)
        if overdue:
            since = self.members.give_up(overdue, now)
            self._late(overdue, "did not catch up in time", now, since=since)
        self._gather(now)
        self._check_published(now)
        effects, self._effects = self._effects, []
        return effects

    def _gather(self, now: float) -> None:
        """Form a session for members that wait to join it; keep it if its seats stay the same.

        A session that stands is of the roster's epoch or an older one. The next one is of the
        roster's, so a coordinator that a later roster names always leads later sessions.
        """
        roster, formation = self.members.roster, self.formation
        if roster is None or self.joins_wait or not formation.senders.complete:
            return
        eligible = self._eligible()
        wanted = {member.id for member in eligible}
        if self.session is not None and wanted == set(self.seated):
            formation.keep(roster.epoch)
            return
        if formation.due is None:
            formation.due = now + self.timeouts.settle
        # Versions may follow each other faster than `settle`: do not let an overtaken member wait.
        hurried = any(m.catch_ups > 1 and m.id not in self.seated for m in eligible)
        if now >= formation.due or len(wanted) == len(roster.members) or hurried:
            if self.session is None:
                self._form(SessionCause.NEW_ROSTER, roster.cause.value, now)
            else:
                joined = ", ".join(m.hello.pod for m in eligible if m.id not in self.seated)
                self._form(SessionCause.MEMBER_CAUGHT_UP, joined, now)

    def _eligible(self) -> list[MemberRecord]:
        committing = self.publisher.waiting if self.publisher.committing else set()
        return self.members.eligible(committing)

    def _form(self, cause: SessionCause, detail: str, now: float) -> None:
        roster = self.members.roster
        if roster is None:
            return
        members = self._eligible()
        self._effects += self.formation.begin(
            roster.epoch, members, now, cause=cause, detail=detail
        )
        self.publisher.interrupt(self.seated)

    def _next_phase(self, session: SessionId, now: float) -> None:
        if self.forming is FormationPhase.PREPARE:
            self._claims.begin(session)
            self._effects += self.formation.join(session, now)
            return
        self._effects += self.formation.complete(session, now)
        self.members.settle_states(self.seated)
        self._stage(now)

    def _forming_timed_out(self, now: float) -> None:
        silent, since = self.formation.silent, self.formation.asked_at
        self.formation.timed_out()
        joins = self.forming is FormationPhase.JOIN
        bound = TimeBound.JOIN if joins else TimeBound.PREPARE
        self._session_lost(bound, f"{self.forming.value} timed out", now)
        if self.forming is FormationPhase.PREPARE and silent:
            self._late(silent, "did not answer PREPARE in time", now, since=since)
        else:
            # A collective join blocks all members, so silence accuses none of them: the next
            # PREPARE, which is not collective, shows which one is stuck.
            self._engine_failed(f"{self.forming.value} timed out", now)

    def _engine_failed(self, error: str, now: float) -> None:
        accused = self.formation.silent or set(self.seated)
        if self.formation.engine_failed() and accused:
            reason = f"engine failed {MAX_ENGINE_FAILURES} times: {error}"
            self._suspect(accused, reason, now, cause=SuspicionCause.ENGINE_ERROR)
        else:
            self._form(SessionCause.ENGINE_ERROR, error, now)

    def _sender_joined(self, rank: int, hello: Hello, now: float) -> None:
        senders = self.formation.senders
        old = senders.at(rank)
        refused = senders.enter(rank, hello)
        if refused:
            self._effects.append(CloseStream(hello.member, refused))
            return
        if old is not None and old != hello.member:
            self._effects.append(CloseStream(old, "another incarnation of its rank registered"))
        self.members.fallback_donor = senders.donors
        if self.session is not None:
            self._form(SessionCause.NEW_ROSTER, f"sender {rank} registered", now)

    # --- messages --------------------------------------------------------------------------------

    def _on_ack(self, sender: MemberId, ack: Ack, now: float) -> None:
        if ack.phase is AckPhase.JOIN:
            self._check_claims(sender, ack, now)
        if ack.phase is AckPhase.COMMIT:
            self._on_commit_ack(sender, ack, now)
        elif self.session is None or ack.session != self.session:
            pass  # of an attempt that was given up
        elif ack.error and ack.own_fault and sender not in self.senders:
            self._on_own_fault(sender, ack, now)
        elif ack.phase is AckPhase.STAGE:
            self._on_stage_ack(sender, ack, now)
        elif self.formation.awaits(sender, ack.phase):
            if ack.error:
                late = self.formation.seat_failed(now)
                self._session_lost(TimeBound.JOIN if late else None, ack.error, now)
                self._engine_failed(ack.error, now)
            elif self.formation.acknowledged(sender):
                self._next_phase(self.session, now)

    def _check_claims(self, sender: MemberId, ack: Ack, now: float) -> None:
        """Exclude who says that it joined a session that, by the trainer's join, none joined."""
        false: set[MemberId] = set()
        if sender not in self.senders and not ack.error:
            false = self._claims.claim(ack.session, sender)
        elif sender in self.senders and ack.none_joined:
            false = self._claims.refute(ack.session)
        reason = f"said that it joined session {ack.session}, and the trainer's own join failed"
        self._effects += [FalseJoin(member) for member in sorted(false)]
        self._suspect(false, reason, now, cause=SuspicionCause.BAD_MESSAGES)

    def _on_own_fault(self, sender: MemberId, ack: Ack, now: float) -> None:
        """Exclude the sender; with it the rollout that it read wrong weights from.

        Which of the two is at fault cannot be known. So an accusation costs the accuser as much
        as the accused, and of each such pair at least one was at fault.
        """
        reason, accused = f"{ack.phase.value} failed: {ack.error}", {sender}
        cause = SuspicionCause.ENGINE_ERROR
        if ack.source in self.seated and ack.source != sender:
            accused.add(ack.source)
            reason, cause = f"{sender}: {reason}", SuspicionCause.WRONG_WEIGHTS
        self._suspect(accused, reason, now, cause=cause)

    def _on_caught_up(self, member: MemberRecord, message: CaughtUp, now: float) -> None:
        """A newcomer ended a catch-up. A donor that two of them found wrong is a suspect."""
        accused = self.members.accuse(member, message.wrong_donors)
        self.members.caught_up(member, message, now)
        self._effects += [WrongWeightsReported(donor.id, member.id) for donor in accused]
        wrong = {donor.id for donor in accused if len(donor.accusers) >= MAX_ACCUSERS}
        reason = f"{MAX_ACCUSERS} newcomers got other weights from it than the trainer made"
        self._suspect(wrong, reason, now, cause=SuspicionCause.WRONG_WEIGHTS)

    def _on_refused(self, sender: MemberId, message: SessionRefused, now: float) -> None:
        roster = self.members.roster
        if roster is not None and message.held.epoch > roster.epoch:
            if sender.pod_uid in self.members.listed:
                self._effects.append(CoordinatorSuperseded(message.held, sender))
        elif message.session == self.session:
            reason = f"holds session {message.held}, which is newer than {message.session}"
            self._suspect({sender}, reason, now, cause=SuspicionCause.REFUSED)

    # --- publishing ----------------------------------------------------------------------------

    def _stage(self, now: float) -> None:
        """The session is usable: send it the version that is queued, if there is one."""
        if self.session is None or not self.publisher.queued:
            return
        if not self.seated:
            self._commit(now)
            return
        seated = [self.members.find(seat) for seat in self.seated]
        held = {member.held if member else None for member in seated}
        participants = self.formation.participants
        self._effects += self.publisher.stage(self.session, participants, now, held=held)

    def _on_stage_ack(self, sender: MemberId, ack: Ack, now: float) -> None:
        if not self.publisher.staging or not self.publisher.publishes(ack.version):
            return
        if ack.error:
            late = self.publisher.transfer_failed(now, few_are_late=self._few_are_late())
            self._session_lost(TimeBound.STAGE if late else None, ack.error, now)
            self._stage_failed(ack.error, now)
        elif self.publisher.acknowledged(sender, now):
            self._commit(now)

    def _few_are_late(self) -> bool:
        """Whether some rollouts have not acknowledged the step, and more have."""
        late = self.publisher.waiting - set(self.senders)
        return 0 < 2 * len(late) < len(self.seated)

    def _stage_failed(self, error: str, now: float) -> None:
        accused = self.publisher.waiting - set(self.senders) or set(self.seated)
        if self.publisher.stage_failed():
            reason, cause = f"stage failed: {error}", SuspicionCause.ENGINE_ERROR
            self._suspect(accused, reason, now, cause=cause)
        else:
            self._form(SessionCause.ENGINE_ERROR, error, now)

    def _commit(self, now: float) -> None:
        publication = self.publisher.publication
        if self.session is None or publication is None:
            return
        self.members.committed(publication.version, publication.manifest)
        self._effects += self.publisher.commit(self.session, self.seated, now)
        self._check_published(now)

    def _on_commit_ack(self, sender: MemberId, ack: Ack, now: float) -> None:
        member = self.members.find(sender)
        if member is None or ack.version is None:
            return
        if not ack.error:
            # True whatever the session is by now: the member serves this version.
            member.held = ack.version
        if not self.publisher.committing or not self.publisher.publishes(ack.version):
            return
        self.publisher.acknowledged(sender, now)
        if ack.error:
            self._drop(member, MemberState.STALE, f"commit failed: {ack.error}", now)
        self._check_published(now)

    def _check_published(self, now: float) -> None:
        """Members may have left: see whether all that are to commit a version have done so."""
        version = self.publisher.take_published(now)
        if version is None:
            return
        if self.seated:
            self.losses.published()
        if self.forming is FormationPhase.STABLE:  # else the seats are of a session not yet usable
            self.members.settle_states(self.seated)
        self._effects.append(VersionPublished(version, len(self.seated) + 1))

    def _publication_timed_out(self, now: float) -> None:
        self.publisher.timed_out(few_are_late=self._few_are_late())
        committing = self.publisher.committing
        bound = TimeBound.COMMIT if committing else TimeBound.STAGE
        self._session_lost(bound, f"{'commit' if committing else 'stage'} timed out", now)
        if committing:
            waiting, since = self.publisher.waiting, self.publisher.asked_at
            self._late(waiting, "did not commit in time", now, since=since)
        else:
            self._stage_failed("timed out", now)

    def _session_lost(self, bound: TimeBound | None, detail: str, now: float) -> None:
        """The session ends because `bound` passed, or else because its engine failed."""
        self.losses.add(bound, detail, now)
        if bound is not None:
            self._effects.append(SessionTimedOut(bound))

    # --- excluding members -----------------------------------------------------------------------

    def _drop(
        self,
        member: MemberRecord,
        state: MemberState,
        reason: str,
        now: float,
        *,
        cause: SuspicionCause | None = None,
        since: float | None = None,
    ) -> None:
        if state is MemberState.SUSPECT and member.state is not state and cause is not None:
            self._effects.append(MemberSuspected(member.id, cause, reason, since))
        member.out(state, reason, cause)
        if member.id in self.seated:
            shown = f"{cause}: {reason}" if cause else reason
            self._form(SessionCause.MEMBER_LOST, f"{member.hello.pod}: {shown}", now)

    def _late(self, members: set[MemberId], reason: str, now: float, *, since: float) -> None:
        self._suspect(members, reason, now, cause=SuspicionCause.ACK_TIMEOUT, since=since)

    def _suspect(
        self,
        members: set[MemberId],
        reason: str,
        now: float,
        *,
        cause: SuspicionCause,
        since: float | None = None,
    ) -> None:
        """Exclude `members`. `since`: when the message was sent that they did not answer."""
        # All are marked before a session is formed, so that a batch of losses costs one attempt.
        known = [found for member in sorted(members) if (found := self.members.find(member))]
        for member in known:
            member.ready = False
        for member in known:
            self._effects.append(CloseStream(member.id, reason))
            self._drop(member, MemberState.SUSPECT, reason, now, cause=cause, since=since)


def _passed(deadline: float | None, now: float) -> bool:
    return deadline is not None and now >= deadline
