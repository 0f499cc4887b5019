"""The coordinator's side of the protocol as a pure state machine: sessions and versions.

Events go in as method calls with the time (seconds, any monotonic clock), effects come out as
values; the driver does the I/O. Below it `sessions` forms sessions. A version is STAGEd to the
session and COMMITted when every member holds it whole.
"""

from rollcall_protocol.membership.coordinator_effects import (
    CloseStream,
    CoordinatorEffect,
    CoordinatorSuperseded,
    MemberSuspected,
    SendMessage,
    VersionPublished,
)
from rollcall_protocol.membership.member_table import MemberRecord
from rollcall_protocol.membership.session_formation import MAX_ENGINE_FAILURES, FormationPhase
from rollcall_protocol.membership.session_machine import SessionMachine
from rollcall_protocol.membership.version_publication import VersionPublication
from rollcall_protocol.wire.ids import Lineage, MemberId, Version
from rollcall_protocol.wire.job_snapshot import (
    MemberReport,
    MemberState,
    SessionCause,
    SuspicionCause,
)
from rollcall_protocol.wire.messages import (
    Ack,
    AckPhase,
    CaughtUp,
    Draining,
    Hello,
    SessionRefused,
    WeightDelta,
)
from rollcall_protocol.wire.roster import EpochCause, Roster
from rollcall_protocol.wire.weight_manifest import WeightManifest


class CoordinatorMachine(SessionMachine):
    """One sync group: what happens to it, and how versions are published."""

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
                self._out += [MemberSuspected(seat, left, "left the roster") for seat in gone]
            self._form(SessionCause.NEW_ROSTER, roster.cause.value, now)
        return self._settle(now)

    def hello(self, hello: Hello, now: float) -> list[CoordinatorEffect]:
        """A member opened its stream. Another life of the same pod is lost by that.

        Which of two lives is the later one nobody can tell: a dead one's Hello may be read last.
        So the other's stream is closed; whoever lives registers again.
        """
        if not self.members.belongs(hello):
            self._out.append(CloseStream(hello.member, "belongs to another job or sync group"))
            return self._settle(now)
        if hello.sender is not None:
            return self._sender_joined(hello.sender, hello, now)
        old = self.members.by_pod.get(hello.member.pod_uid)
        if old is not None:
            if old.id != hello.member:
                self._out.append(CloseStream(old.id, "another life of its pod registered"))
            lost = SuspicionCause.CONNECTION_LOST
            self._drop(old, MemberState.SUSPECT, "registered again", now, lost)
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
        rank = self._senders.leave(member)
        if rank is not None:
            self._out.append(MemberSuspected(member, cause, reason))
            self._form(SessionCause.MEMBER_LOST, f"sender {rank}: {cause}: {reason}", now)
        known = self.members.find(member)
        if known is not None:
            leaving = known.state in {MemberState.DRAINING, MemberState.GONE}
            state = MemberState.GONE if leaving else MemberState.SUSPECT
            self._drop(known, state, reason, now, cause)
            self.members.disconnected(known)
        return self._settle(now)

    def absent(self, pod_uid: str, reason: str, now: float) -> list[CoordinatorEffect]:
        """A pod of the roster has not registered in time; `reason` is what a call found out."""
        if pod_uid in self.members.listed and pod_uid not in self.members.by_pod:
            self.members.absent[pod_uid] = reason
        return self._settle(now)

    def receive(
        self, sender: MemberId, message: Ack | CaughtUp | SessionRefused | Draining, now: float
    ) -> list[CoordinatorEffect]:
        """A message of a member (or of the trainer's own sender)."""
        known = self.members.find(sender)
        if isinstance(message, Ack):
            if known is not None or sender in self.senders:
                self._on_ack(sender, message, now)
        elif known is None:
            pass  # an older life of the pod: nothing it says counts
        elif isinstance(message, CaughtUp):
            self._on_caught_up(known, message)
        elif isinstance(message, Draining):
            known.state, known.reason = MemberState.DRAINING, message.reason
        elif self.session is not None and message.held.epoch > self.session.epoch:
            self._out.append(CoordinatorSuperseded(message.held))
        elif message.session == self.session:
            reason = f"holds session {message.held}, which is newer than {message.session}"
            self._suspect({sender}, reason, now, SuspicionCause.REFUSED)
        return self._settle(now)

    def publish(
        self,
        version: Version,
        manifest: WeightManifest,
        now: float,
        *,
        delta: WeightDelta | None = None,
    ) -> list[CoordinatorEffect]:
        """Bring `version` to the session. One at a time; ends with Published."""
        if self._publication is not None:
            raise RuntimeError(f"{self._publication.version} is still being published")
        self._publication = VersionPublication(version=version, manifest=manifest, delta=delta)
        if self.forming is FormationPhase.STABLE:
            self._stage(now)
        return self._settle(now)

    def tick(self, now: float) -> list[CoordinatorEffect]:
        """Act on deadlines that have passed."""
        deadline = self._formation.deadline
        if deadline is not None and now >= deadline:
            self._forming_timed_out(now)
        publication = self._publication
        if publication and publication.deadline is not None and now >= publication.deadline:
            self._publication_timed_out(publication, now)
        return self._settle(now)

    # --- what others may ask -------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When `tick` is due at the latest; None when nothing is waited for."""
        publishing = self._publication.deadline if self._publication else None
        times = [self._formation.deadline, publishing]
        times += [member.deadline for member in self.members.by_pod.values()]
        if not self._busy:
            times.append(self._formation.due)
        return min((time for time in times if time is not None), default=None)

    @property
    def current(self) -> Version | None:
        """The newest version that a COMMIT went out for."""
        return self.members.current

    @property
    def lineage(self) -> Lineage | None:
        """The lineage of versions that this life of the trainer publishes."""
        return None if self.since_epoch is None else Lineage(self.since_epoch, self.boot)

    @property
    def highest_number(self) -> int:
        """The highest version number that any member reported, -1 when none did."""
        held = [member.held.number for member in self.members.by_pod.values() if member.held]
        return max(held, default=-1)

    def serving(self, member: MemberId) -> bool:
        """Whether `member` may be given prompts."""
        known = self.members.find(member)
        return known is not None and known.state is MemberState.IN_SYNC

    def knows(self, pod_uid: str) -> bool:
        """Whether a life of this pod has registered since the roster named it."""
        return pod_uid in self.members.by_pod

    def reports(self) -> tuple[MemberReport, ...]:
        """The state of all members on the roster, in the order of their pods' names."""
        return self.members.reports()

    # --- acknowledgements -------------------------------------------------------------------------

    def _on_ack(self, sender: MemberId, ack: Ack, now: float) -> None:
        if ack.phase is AckPhase.COMMIT:
            self._on_commit_ack(sender, ack, now)
        elif ack.session != self.session:
            pass  # of an attempt that was given up
        elif ack.error and ack.own_fault and sender not in self.senders:
            reason = f"{ack.phase.value} failed: {ack.error}"
            self._suspect({sender}, reason, now, SuspicionCause.ENGINE_ERROR)
        elif ack.phase is AckPhase.STAGE:
            self._on_stage_ack(sender, ack, now)
        elif self._formation.awaits(sender, ack.phase):
            if ack.error:
                self._engine_failed(ack.error, now)
            elif self._formation.acknowledged(sender):
                self._next_phase(self.session, now)

    # --- publishing ----------------------------------------------------------------------------

    def _stage(self, now: float) -> None:
        publication = self._publication
        if publication is None or self.session is None or publication.committing:
            return
        if not self.seated:
            self._commit(publication, now)
            return
        everybody = (*self.senders, *self.seated)
        seated = [self.members.find(seat) for seat in self.seated]
        held = {member.held if member else None for member in seated}
        deadline = now + self.timing.stage_timeout
        message = publication.stage(self.session, everybody, deadline, held=held)
        self._out += [SendMessage(member, message) for member in everybody]

    def _on_stage_ack(self, sender: MemberId, ack: Ack, now: float) -> None:
        publication = self._publication
        if publication is None or not publication.staging or ack.version != publication.version:
            return
        if ack.error:
            self._stage_failed(publication, ack.error, now)
        elif publication.acknowledged(sender):
            self._commit(publication, now)

    def _stage_failed(self, publication: VersionPublication, error: str, now: float) -> None:
        publication.failed()
        accused = publication.waiting - set(self.senders) or set(self.seated)
        if publication.failures >= MAX_ENGINE_FAILURES:
            publication.failures = 0
            self._suspect(accused, f"stage failed: {error}", now, SuspicionCause.ENGINE_ERROR)
        else:
            self._form(SessionCause.ENGINE_ERROR, error, now)

    def _commit(self, publication: VersionPublication, now: float) -> None:
        if self.session is None:
            return
        self.members.current = publication.version
        message = publication.commit(self.session, self.seated, now + self.timing.commit_timeout)
        self._out += [SendMessage(member, message) for member in self.seated]
        self._check_commit()

    def _on_commit_ack(self, sender: MemberId, ack: Ack, now: float) -> None:
        member = self.members.find(sender)
        if member is None or ack.version is None:
            return
        if not ack.error:
            # True whatever the session is by now: the member serves this version.
            member.held = ack.version
        publication = self._publication
        if publication is None or not publication.committing or ack.version != publication.version:
            return
        publication.acknowledged(sender)
        if ack.error:
            self._drop(member, MemberState.STALE, f"commit failed: {ack.error}", now)
        self._check_commit()

    def _check_commit(self) -> None:
        publication = self._publication
        if publication is None or not publication.committing or publication.waiting:
            return
        self._publication = None
        if self.forming is FormationPhase.STABLE:  # else the seats are of a session not yet usable
            self.members.settle_states(self.seated)
        self._out.append(VersionPublished(publication.version, len(self.seated) + 1))

    def _publication_timed_out(self, publication: VersionPublication, now: float) -> None:
        if publication.committing:
            late, bound = SuspicionCause.ACK_TIMEOUT, self.timing.commit_timeout
            waiting = set(publication.waiting)
            self._suspect(waiting, "did not commit in time", now, late, bound=bound)
        else:
            self._stage_failed(publication, "timed out", now)
