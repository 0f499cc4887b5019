"""The coordinator's table of a sync group: its roster, and state and version of each member."""

from collections import Counter
from dataclasses import dataclass, field

from rollcall_protocol.membership.coordinator_effects import RosterRefusedError, SendMessage
from rollcall_protocol.membership.stretched_bounds import StretchedBound
from rollcall_protocol.wire.addresses import host_port
from rollcall_protocol.wire.ids import MemberId, Version
from rollcall_protocol.wire.job_snapshot import MemberReport, MemberState, SuspicionCause
from rollcall_protocol.wire.messages import CatchUp, CaughtUp, Hello, Seat
from rollcall_protocol.wire.roster import Roster
from rollcall_protocol.wire.weight_manifest import WeightManifest

MAX_CATCH_UPS = 5  # in a row, before a newcomer that never gets current is a suspect
MAX_DONORS = 3
MAX_NEWCOMERS = 4  # that a rollout is the first donor of at once
MAX_ACCUSERS = 2  # newcomers that got wrong weights from a donor, before it is a suspect
MAX_REASON = 500  # characters; a member's own words reach the job's conditions
_WAITING = frozenset({MemberState.REGISTERED, MemberState.STALE, MemberState.CATCHING_UP})
_GIVING = _WAITING | {MemberState.IN_SYNC}  # as a donor, whether in the session yet or not


def is_newer_roster(
    roster: Roster, held: Roster | None, *, job: tuple[str, str], coordinator: str
) -> bool:
    """Whether `roster` replaces `held`; False when it is the same. Raises RosterRefusedError.

    `job` is the job's uid and the group, `coordinator` the uid of the pod that has to be named.
    """
    epoch = held.epoch if held else 0
    if (roster.job_uid, roster.group) != job:
        raise RosterRefusedError("the roster is of another job or sync group", epoch)
    if roster.coordinator_uid != coordinator:
        raise RosterRefusedError("the roster names another coordinator", epoch)
    if roster.epoch < epoch:
        raise RosterRefusedError(f"epoch {roster.epoch} is older than {epoch}", epoch)
    if held is not None and roster.epoch == epoch:
        if roster.digest != held.digest:
            raise RosterRefusedError(f"epoch {epoch} is known with another roster", epoch)
        return False
    return True


@dataclass(slots=True)
class MemberRecord:
    """A registered worker. `ready`: it may have a seat in the next session.

    `held` is the version that it serves, `asked_at` and `deadline` are begin and end of its
    catch-up (the machine's clock), `catch_ups` the number of catch-ups in a row, `donors` the
    addresses that it fetches from. `accusers` are the pods that got wrong weights from it: it is no
    donor any more.
    """

    hello: Hello
    state: MemberState = MemberState.REGISTERED
    held: Version | None = None
    reason: str = ""
    cause: SuspicionCause | None = None
    ready: bool = False
    connected: bool = True
    deadline: float | None = None
    asked_at: float = 0.0
    catch_ups: int = 0
    donors: tuple[str, ...] = ()
    accusers: set[str] = field(default_factory=set)

    @property
    def donor_address(self) -> str:
        """Where newcomers fetch weights from it, host:port."""
        return host_port(self.hello.address, self.hello.weights_port)

    @property
    def id(self) -> MemberId:
        """Its pod and boot id."""
        return self.hello.member

    def seat(self) -> Seat:
        """Its place in a session."""
        return Seat(self.id, self.hello.address, self.hello.descriptor)

    def out(self, state: MemberState, reason: str, cause: SuspicionCause | None = None) -> None:
        """Exclude it; the first reason is kept, since later ones follow from it."""
        if self.state is not state or not self.reason:
            self.reason, self.cause = reason[:MAX_REASON], cause
        self.state, self.ready = state, False
        self.deadline, self.donors = None, ()

    def report(self) -> MemberReport:
        """Its entry in the report to the operator."""
        version = self.held.number if self.held else None
        pod, pool = self.hello.pod, self.hello.pool
        cause = self.cause if self.state is MemberState.SUSPECT else None
        return MemberReport(self.id.pod_uid, pod, pool, self.state, version, self.reason, cause)


class MemberTable:
    """Registered members of one group, the roster they are checked against, and their versions.

    `max_staleness` counts versions. `fallback_donor` (the trainer) is the last donor, so that a
    catch-up costs it nothing while a rollout holds the version. If none does, it gives the version
    to one newcomer, from which the others get it. `absent` has the pods of the roster that did not
    register in time, with the reason.
    """

    def __init__(
        self,
        *,
        job_uid: str,
        group: str,
        coordinator_uid: str,
        max_staleness: int,
        fallback_donor: str,
        catch_up: StretchedBound,
    ) -> None:
        self.roster: Roster | None = None
        self._published: tuple[Version, WeightManifest] | None = None
        self.by_pod: dict[str, MemberRecord] = {}
        self._job = (job_uid, group)
        self._coordinator_uid = coordinator_uid
        self._max_staleness = max_staleness
        self.fallback_donor = fallback_donor
        self._catch_up = catch_up
        self.absent: dict[str, str] = {}

    @property
    def current(self) -> Version | None:
        """The newest version that a COMMIT went out for."""
        return self._published[0] if self._published else None

    @property
    def listed(self) -> set[str]:
        """Pod uids on the roster."""
        return {member.pod_uid for member in self.roster.members} if self.roster else set()

    def find(self, member: MemberId) -> MemberRecord | None:
        """The member, unless another incarnation of its pod took its place."""
        known = self.by_pod.get(member.pod_uid)
        return known if known is not None and known.id == member else None

    def belongs(self, hello: Hello) -> bool:
        """Whether a hello names this job and group."""
        return (hello.job_uid, hello.group) == self._job

    def take_roster(self, roster: Roster) -> bool:
        """Take a newer roster; False when it is known. Raises RosterRefusedError."""
        if not is_newer_roster(
            roster, self.roster, job=self._job, coordinator=self._coordinator_uid
        ):
            return False
        self.roster = roster
        self.absent = {u: reason for u, reason in self.absent.items() if u in self.listed}
        for uid in [u for u in self.by_pod if u not in self.listed]:
            self._off_roster(uid)
        for member in self.by_pod.values():
            if member.state is MemberState.GONE and member.connected:
                member.state, member.reason = MemberState.REGISTERED, ""
        return True

    def disconnected(self, member: MemberRecord) -> None:
        """Its stream ended; a member that is not on the roster either is removed."""
        member.connected = False
        if member.id.pod_uid not in self.listed:
            self.by_pod.pop(member.id.pod_uid, None)

    def eligible(self, committing: set[MemberId]) -> list[MemberRecord]:
        """Members that may have a seat in the next session, in the order of ranks.

        A member that a COMMIT has overtaken since it became ready must catch up again, unless it is
        one of those that are `committing`.
        """
        ready = [
            m
            for uid, m in self.by_pod.items()
            if m.ready and uid in self.listed and (self.is_current(m.held) or m.id in committing)
        ]
        return sorted(ready, key=lambda m: (m.hello.pod, m.id))

    def is_current(self, held: Version | None) -> bool:
        """Whether `held` may be served; True before anything is published in this lineage."""
        if self.current is None:
            return True
        return (
            held is not None
            and held.lineage == self.current.lineage
            and 0 <= self.current.number - held.number <= self._max_staleness
        )

    def admit_waiting(self, now: float, *, but: set[MemberId]) -> list[SendMessage]:
        """Mark waiting members as ready, or have them catch up. `but`: the members with a seat."""
        asked = []
        for uid, member in sorted(self.by_pod.items()):
            waiting = member.connected and member.state in _WAITING
            if uid in self.listed and waiting and member.id not in but:
                asked += self._admit(member, now)
        return asked

    def overdue(self, now: float) -> set[MemberId]:
        """Newcomers whose catch-up took too long or too many attempts."""
        return {
            m.id
            for m in self.by_pod.values()
            if (m.deadline is not None and now >= m.deadline)
            or (m.connected and m.state is MemberState.CATCHING_UP and m.catch_ups > MAX_CATCH_UPS)
        }

    def errors(self, overdue: set[MemberId]) -> dict[MemberId, str]:
        """Of these, those that have no attempt left: what the last one ended with."""
        late = [m for m in self.by_pod.values() if m.id in overdue]
        return {m.id: m.reason for m in late if m.reason and m.catch_ups > MAX_CATCH_UPS}

    def give_up(self, overdue: set[MemberId], now: float) -> float:
        """Note that these did not catch up in time; returns when the first of them was asked to."""
        late = [m for m in self.by_pod.values() if m.id in overdue]
        if any(m.deadline is not None and now >= m.deadline for m in late):
            self._catch_up.passed()
        return min((m.asked_at for m in late), default=now)

    def committed(self, version: Version, manifest: WeightManifest) -> None:
        """A COMMIT goes out for `version`, which `manifest` describes."""
        self._published = version, manifest

    def caught_up(self, member: MemberRecord, message: CaughtUp, now: float) -> None:
        """A newcomer serves a version that it fetched, or failed to fetch one."""
        if member.state is not MemberState.CATCHING_UP:
            return
        if member.deadline is not None and not message.error:
            self._catch_up.took(now - member.asked_at)
        member.deadline, member.donors, member.reason = None, (), message.error[:MAX_REASON]
        if not message.error:
            member.held = message.version

    def accuse(self, newcomer: MemberRecord, donors: tuple[str, ...]) -> list[MemberRecord]:
        """Note that `newcomer` got wrong weights from these of its donors; returns the rollouts."""
        named = set(donors) & set(newcomer.donors)
        accused = [
            member
            for member in self.by_pod.values()
            if member.donor_address in named and member is not newcomer
        ]
        for member in accused:
            member.accusers.add(newcomer.id.pod_uid)
        return accused

    def settle_states(self, seated: tuple[MemberId, ...]) -> None:
        """Members of the session that serve a current version are InSync."""
        for member in self.by_pod.values():
            if member.id in seated and member.state is not MemberState.DRAINING:
                serves = self.current is not None and self.is_current(member.held)
                member.state = MemberState.IN_SYNC if serves else MemberState.REGISTERED
                member.reason, member.catch_ups = "", 0

    def reports(self) -> tuple[MemberReport, ...]:
        """The state of all members on the roster, in the order of their pods' names."""
        known = [m.report() for uid, m in self.by_pod.items() if uid in self.listed]
        known += [
            MemberReport(
                seat.pod_uid,
                seat.pod,
                seat.pool,
                MemberState.SUSPECT,
                None,
                self.absent[seat.pod_uid],
                SuspicionCause.NOT_REGISTERED,
            )
            for seat in (self.roster.members if self.roster else ())
            if seat.pod_uid in self.absent and seat.pod_uid not in self.by_pod
        ]
        return tuple(sorted(known, key=lambda report: report.pod))

    def _off_roster(self, uid: str) -> None:
        member = self.by_pod[uid]
        if not member.connected:
            del self.by_pod[uid]
        elif member.state is MemberState.DRAINING:
            member.ready = False
        else:
            member.out(MemberState.GONE, "left the roster")

    def _admit(self, member: MemberRecord, now: float) -> list[SendMessage]:
        if self._published is None or self.is_current(member.held):
            member.ready, member.deadline, member.donors = True, None, ()
            return []
        member.ready = False
        if member.deadline is not None or member.catch_ups > MAX_CATCH_UPS:
            return []
        version, manifest = self._published
        donors = self._choose_donors(version, member.hello.shard)
        if not donors:
            return []
        member.state, member.catch_ups = MemberState.CATCHING_UP, member.catch_ups + 1
        member.donors, member.asked_at = donors, now
        member.deadline = now + self._catch_up.seconds
        return [SendMessage(member.id, CatchUp(version, manifest, donors))]

    def _choose_donors(self, version: Version, shard: str) -> tuple[str, ...]:
        """Peers that hold `version`, or `shard` of it, least busy with other newcomers first; then
        the trainer. Empty if the newcomer has to wait until another one has caught up.
        """
        peers = [m for m in self.by_pod.values() if m.hello.shard in {"", shard}]
        holders = [m.donor_address for m in peers if m.held == version and self._may_give(m)]
        if not holders:
            given = any(m.donors == (self.fallback_donor,) for m in peers)
            return () if given else (self.fallback_donor,)
        busy = Counter(m.donors[0] for m in self.by_pod.values() if m.donors)
        free = [address for address in holders if busy[address] < MAX_NEWCOMERS]
        free.sort(key=lambda address: (busy[address], address))
        return (*free[:MAX_DONORS], self.fallback_donor) if free else ()

    def _may_give(self, member: MemberRecord) -> bool:
        there = member.connected and member.id.pod_uid in self.listed
        return there and member.state in _GIVING and not member.accusers
