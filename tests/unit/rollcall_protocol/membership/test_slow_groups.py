"""A group on a busy machine is slower, and never still; what does not help is said."""

from dataclasses import replace

import pytest

from rollcall_protocol.membership.coordinator_effects import (
    CloseStream,
    CoordinatorEffect,
    MemberSuspected,
    ProtocolTimeouts,
    SendMessage,
    SessionTimedOut,
    VersionPublished,
)
from rollcall_protocol.membership.coordinator_machine import CoordinatorMachine
from rollcall_protocol.membership.member_machine import JoinEngine, MemberMachine
from rollcall_protocol.membership.session_formation import FormationPhase
from rollcall_protocol.membership.session_losses import LONG, MANY, SessionLosses
from rollcall_protocol.membership.stretched_bounds import STRETCH_LIMIT
from rollcall_protocol.wire.ids import MemberId, SessionId, Version
from rollcall_protocol.wire.job_snapshot import SuspicionCause, TimeBound
from rollcall_protocol.wire.messages import Ack, AckPhase, Commit, Join, Prepare, Seat, Stage
from tests.unit.rollcall_protocol.membership.simulated_group import (
    MANIFEST,
    SENDER,
    TIMEOUTS,
    hello,
    machine,
    roster,
)

ROLLOUT = MemberId("uid-a", "b1")


class SlowGroup:
    """A coordinator and a rollout for each letter of `pods`, of which those of `hang` answer no
    STAGE; each kind of message is answered `takes` seconds later.
    """

    def __init__(self, pods: str = "a", hang: str = "", /, **takes: float) -> None:
        self.hang = {MemberId(f"uid-{pod}", "b1") for pod in hang}
        self.takes = {Prepare: 0.0, Join: 0.0, Stage: 0.0, Commit: 0.0}
        names = {kind.__name__.lower(): kind for kind in self.takes}
        self.takes |= {names[name]: seconds for name, seconds in takes.items()}
        self.now, self.machine, self.published_at = 0.0, machine(), 0.0
        self.effects: list[CoordinatorEffect] = []
        self.answers: list[tuple[float, MemberId, Ack]] = []
        self.do(self.machine.push_roster(roster(1, *pods), self.now))
        for pod in pods:
            self.do(self.machine.hello(hello(pod), self.now))
        self.number = 0

    def do(self, effects: list[CoordinatorEffect]) -> None:
        self.effects += effects
        for effect in effects:
            if isinstance(effect, VersionPublished):
                self.published_at = self.now
            if isinstance(effect, SendMessage):
                self.answer(effect)
            elif isinstance(effect, CloseStream):
                self.do(self.machine.lost(effect.to, "closed", self.now))
                pod = effect.to.pod_uid.removeprefix("uid-")
                self.do(self.machine.hello(hello(pod, held=self.held), self.now))

    @property
    def held(self) -> Version | None:
        return self.machine.current

    def answer(self, effect: SendMessage) -> None:
        message = effect.message
        if not isinstance(message, (Prepare, Join, Stage, Commit)):
            return
        if effect.to in self.hang and isinstance(message, Stage):
            return
        phase = AckPhase(type(message).__name__.lower())
        version = message.version if isinstance(message, (Stage, Commit)) else None
        ack = Ack(message.session, phase, version)
        self.answers.append((self.now + self.takes[type(message)], effect.to, ack))

    def run(self, seconds: float = 10_000.0) -> None:
        """Until nothing is awaited, or `seconds` have passed."""
        end = self.now + seconds
        while self.now < end:
            self.answers.sort(key=lambda answer: answer[0])
            due = self.machine.next_deadline()
            if self.answers and (due is None or self.answers[0][0] < due):
                self.now, sender, ack = self.answers.pop(0)
                self.do(self.machine.receive(sender, ack, self.now))
            elif due is not None:
                self.now = max(self.now, due)
                self.do(self.machine.tick(self.now))
            else:
                return

    def publish(self) -> tuple[int, int]:
        """Publish a version: how many sessions timed out until it was, and to how many members."""
        self.number += 1
        before = self.timed_out
        lineage = self.machine.lineage
        assert lineage is not None
        self.do(self.machine.publish(Version(lineage, self.number), MANIFEST, self.now))
        self.run()
        assert self.machine.forming is FormationPhase.STABLE
        published = [e for e in self.effects if isinstance(e, VersionPublished)]
        return self.timed_out - before, published[-1].members

    @property
    def timed_out(self) -> int:
        return len([e for e in self.effects if isinstance(e, SessionTimedOut)])


@pytest.mark.parametrize(
    ("waits", "setting"),
    [
        ("prepare", TIMEOUTS.ack_timeout),
        ("join", TIMEOUTS.join_timeout),
        ("stage", TIMEOUTS.stage_timeout),
        ("commit", TIMEOUTS.commit_timeout),
    ],
)
@pytest.mark.parametrize("times", [1.5, 3.0, 5.9])
def test_a_group_that_needs_longer_than_a_setting_still_publishes(
    waits: str, setting: float, times: float
) -> None:
    group = SlowGroup(**{waits: times * setting})
    group.run()
    seen = [group.publish() for _ in range(6)]
    assert sum(lost for lost, _ in seen) <= 2
    assert seen[-4:] == [(0, 2)] * 4, "later ones lose no session, and all members get them"


def test_all_bounds_are_the_settings_once_the_machine_is_idle_again() -> None:
    group = SlowGroup(join=8.0, stage=50.0)
    group.run()
    group.publish()
    bounds = group.machine.bounds
    assert bounds.stage.stretch > 1 < bounds.join.stretch
    group.takes |= {Join: 0.1, Stage: 0.1}
    for _ in range(5):
        group.publish()
        group.do(group.machine.lost(ROLLOUT, "gone", group.now))
        group.do(group.machine.hello(hello("a", held=group.held), group.now))
        group.run()
    each = (bounds.prepare, bounds.join, bounds.stage, bounds.commit, bounds.catch_up)
    assert [bound.stretch for bound in each] == [1.0] * 5


def test_the_engines_bounds_stretch_with_those_of_join_and_stage() -> None:
    group = SlowGroup()
    group.run()
    group.takes[Stage] = 40.0
    group.publish()
    joins = [
        e.message.stretch
        for e in group.effects
        if isinstance(e, SendMessage) and isinstance(e.message, Join) and e.to == SENDER
    ]
    assert joins == [1.0, 3.0], "the stage of 30 s passed once"


def test_a_transfer_that_fails_within_the_engines_own_bound_gives_the_next_one_longer() -> None:
    group = SlowGroup(stage=20.0)
    group.run()
    group.publish()
    before = group.machine.bounds.engine_stretch
    group.number += 1
    lineage = group.machine.lineage
    assert lineage is not None
    version = Version(lineage, group.number)
    group.do(group.machine.publish(version, MANIFEST, group.now))
    session = group.machine.session
    assert session is not None
    failed = Ack(session, AckPhase.STAGE, version, error="timed out")
    group.do(group.machine.receive(SENDER, failed, group.now + 5.0))
    assert group.machine.bounds.engine_stretch > before
    assert SessionTimedOut(TimeBound.STAGE) in group.effects


@pytest.mark.parametrize(
    ("hang", "stage", "seconds"),
    [
        ("d", 1.0, 3 * TIMEOUTS.stage_timeout),
        ("d", 20.0, (1 + 2 + 2) * TIMEOUTS.stage_timeout),  # thrice the others' 20 s
        ("cd", 1.0, (1 + 3 + 6) * TIMEOUTS.stage_timeout),
    ],
    ids=["one of four", "and the others are slow", "half of all"],
)
def test_the_few_that_acknowledge_no_stage_are_excluded_by_the_time_that_the_others_take(
    hang: str, stage: float, seconds: float
) -> None:
    group = SlowGroup("abcd", hang, stage=stage)
    group.run()
    began = group.now
    assert group.publish() == (3, 5 - len(hang))
    suspected = {e.member for e in group.effects if isinstance(e, MemberSuspected)}
    assert suspected == group.hang
    assert group.published_at - began == pytest.approx(seconds + stage)


def test_a_transfer_that_fails_at_once_stretches_nothing() -> None:
    group = SlowGroup()
    group.run()
    group.number = 1
    lineage = group.machine.lineage
    assert lineage is not None
    version = Version(lineage, 1)
    group.do(group.machine.publish(version, MANIFEST, group.now))
    session = group.machine.session
    assert session is not None
    reset = Ack(session, AckPhase.STAGE, version, error="connection reset")
    group.do(group.machine.receive(SENDER, reset, group.now))
    assert group.machine.bounds.engine_stretch == 1.0
    assert group.timed_out == 0


def test_a_slow_newcomer_has_longer_for_its_next_catch_up() -> None:
    group = SlowGroup()
    group.run()
    group.publish()
    group.do(group.machine.push_roster(roster(2, "a", "z"), group.now))
    group.do(group.machine.hello(hello("z"), group.now))
    asked = group.now
    group.run(TIMEOUTS.stage_timeout + 1)
    late = SuspicionCause.ACK_TIMEOUT
    suspected = [e for e in group.effects if isinstance(e, MemberSuspected) and e.cause is late]
    assert [(e.member.pod_uid, e.since) for e in suspected] == [("uid-z", asked)]
    assert group.machine.bounds.catch_up.stretch == 3.0


def test_a_rollout_that_is_late_is_suspected_since_it_was_asked() -> None:
    group = SlowGroup(commit=8.0)
    group.run()
    asked = group.now
    group.publish()
    suspected = [e for e in group.effects if isinstance(e, MemberSuspected)]
    assert (suspected[0].cause, suspected[0].since) == (SuspicionCause.ACK_TIMEOUT, asked)


def test_a_model_may_keep_the_bounds_as_they_are() -> None:
    fixed = replace(TIMEOUTS, stretch_limit=1.0)
    coordinator = CoordinatorMachine(
        job_uid="job",
        group="default",
        boot=1,
        sender=Seat(SENDER, "ip", ""),
        fallback_donor="trainer:7100",
        timeouts=fixed,
        max_staleness=1,
    )
    coordinator.bounds.stage.passed()
    assert coordinator.bounds.stage.stretch == 1.0
    assert ProtocolTimeouts(1, 1, 1, 1, 1).stretch_limit == STRETCH_LIMIT


def test_a_member_gives_its_engine_the_stretch_that_the_coordinator_says() -> None:
    member, session = MemberMachine(), SessionId(1, 1, 1)
    member.receive(Prepare(session, ()))
    assert member.receive(Join(session, 4.0)) == [JoinEngine(session, (), 1, 4.0)]
    assert member.receive(Join(session, 1e9)) == [JoinEngine(session, (), 1, 1.0)]


# --- lost sessions -------------------------------------------------------------------------------


def lost(losses: int, *, every: float) -> SessionLosses:
    found = SessionLosses()
    for loss in range(losses):
        found.add(TimeBound.STAGE, f"loss {loss}", now=100.0 + loss * every)
    return found


def test_many_sessions_that_end_for_long_without_a_version_are_reported() -> None:
    report = lost(MANY, every=LONG / (MANY - 1)).report()
    assert report is not None
    assert (report.sessions, report.seconds, report.bound) == (MANY, LONG, TimeBound.STAGE)
    assert report.detail == f"loss {MANY - 1}"


@pytest.mark.parametrize(("losses", "every"), [(MANY - 1, LONG), (3 * MANY, 1.0)])
def test_few_losses_or_a_short_burst_are_not(losses: int, every: float) -> None:
    assert lost(losses, every=every).report() is None


def test_a_published_version_ends_that() -> None:
    losses = lost(3 * MANY, every=LONG)
    losses.published()
    losses.add(TimeBound.STAGE, "another", now=1e6)
    assert losses.report() is None


def test_a_group_that_needs_longer_than_the_limit_says_so() -> None:
    group = SlowGroup(stage=STRETCH_LIMIT * TIMEOUTS.stage_timeout + 1)
    group.run()
    for _ in range(2):
        assert group.publish() == (3, 1), "the third failure in a row excludes the rollout"
    found = group.machine.losses.report()
    assert found is not None
    assert (found.sessions, found.bound) == (6, TimeBound.STAGE)
    assert found.detail == "stage timed out"


def test_members_that_are_killed_again_and_again_do_not_count() -> None:
    group = SlowGroup()
    group.run()
    for _ in range(3 * MANY):
        group.now += LONG
        group.do(group.machine.lost(ROLLOUT, "reset", group.now))
        group.do(group.machine.hello(hello("a"), group.now))
        group.run()
    assert group.machine.losses.report() is None


def test_silent_members_that_come_back_again_and_again_count() -> None:
    group = SlowGroup()
    group.run()
    missed = SuspicionCause.HEARTBEAT_MISSED
    for _ in range(MANY):
        group.now += LONG
        group.do(group.machine.lost(ROLLOUT, "nothing received", group.now, cause=missed))
        group.do(group.machine.hello(hello("a"), group.now))
        group.run()
    found = group.machine.losses.report()
    assert found is not None
    assert found.bound is TimeBound.SILENCE
