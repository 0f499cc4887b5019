"""A member that says it joined a session which, by the trainer's own join, no member joined."""

from rollcall_protocol.membership.coordinator_effects import (
    CloseStream,
    CoordinatorEffect,
    FalseJoin,
    MemberSuspected,
)
from rollcall_protocol.membership.coordinator_machine import CoordinatorMachine
from rollcall_protocol.membership.join_claims import KEPT_JOINS, JoinClaims
from rollcall_protocol.membership.member_machine import JoinEngine, MemberMachine, SendToCoordinator
from rollcall_protocol.wire.ids import MemberId, SessionId
from rollcall_protocol.wire.job_snapshot import UNTRUSTED, SuspicionCause
from rollcall_protocol.wire.messages import Ack, AckPhase, Join, Prepare
from tests.unit.rollcall_protocol.membership.simulated_group import (
    SENDER,
    TIMEOUTS,
    hello,
    machine,
    roster,
)

A, B = MemberId("uid-a", "b1"), MemberId("uid-b", "b1")
BAD = SuspicionCause.BAD_MESSAGES


def joining() -> CoordinatorMachine:
    """A coordinator whose trainer, a and b have been asked to join."""
    coordinator = machine()
    coordinator.push_roster(roster(1, "a", "b"), 0)
    coordinator.hello(hello("a"), 0)
    coordinator.hello(hello("b"), 0)
    prepared(coordinator)
    return coordinator


def session_of(coordinator: CoordinatorMachine) -> SessionId:
    assert coordinator.session is not None
    return coordinator.session


def prepared(coordinator: CoordinatorMachine) -> None:
    session = session_of(coordinator)
    for member in (SENDER, *coordinator.seated):
        coordinator.receive(member, Ack(session, AckPhase.PREPARE), 0)


def joined(session: SessionId) -> Ack:
    return Ack(session, AckPhase.JOIN)


def refuted(session: SessionId) -> Ack:
    """What the trainer says of a join that failed before it could end well anywhere."""
    return Ack(session, AckPhase.JOIN, error="seats stayed empty", none_joined=True)


def suspects(effects: list[CoordinatorEffect]) -> dict[MemberId, SuspicionCause]:
    return {e.member: e.cause for e in effects if isinstance(e, MemberSuspected)}


def test_who_says_it_joined_is_excluded_for_good_when_the_trainer_shows_that_none_did() -> None:
    coordinator = joining()
    session = session_of(coordinator)
    assert not suspects(coordinator.receive(A, joined(session), 0))
    effects = coordinator.receive(SENDER, refuted(session), 0)
    assert suspects(effects) == {A: BAD}
    assert BAD in UNTRUSTED, "it stays out until its pod is replaced"
    assert FalseJoin(A) in effects
    assert [effect.to for effect in effects if isinstance(effect, CloseStream)] == [A]
    assert coordinator.seated == (B,)
    assert session_of(coordinator) > session


def test_it_counts_when_another_member_ended_the_attempt_before_the_trainers_word() -> None:
    coordinator = joining()
    session = session_of(coordinator)
    coordinator.receive(A, joined(session), 0)
    failed = Ack(session, AckPhase.JOIN, error="the sender's own join did not end in time")
    assert not suspects(coordinator.receive(B, failed, 0))
    assert session_of(coordinator) > session
    assert suspects(coordinator.receive(SENDER, refuted(session), 0)) == {A: BAD}


def test_it_counts_when_the_trainers_word_comes_first() -> None:
    coordinator = joining()
    session = session_of(coordinator)
    assert not suspects(coordinator.receive(SENDER, refuted(session), 0))
    assert suspects(coordinator.receive(A, joined(session), 0)) == {A: BAD}


def test_it_is_found_with_the_first_join_that_times_out() -> None:
    coordinator = joining()
    session = session_of(coordinator)
    coordinator.receive(A, joined(session), 0)
    assert not suspects(coordinator.tick(TIMEOUTS.join_timeout)), "no answer accuses none"
    assert suspects(coordinator.receive(SENDER, refuted(session), 6)) == {A: BAD}


def test_a_join_that_failed_at_the_trainer_after_others_may_have_ended_well_accuses_none() -> None:
    coordinator = joining()
    session = session_of(coordinator)
    coordinator.receive(A, joined(session), 0)
    failed = Ack(session, AckPhase.JOIN, error="the connection broke")
    assert not suspects(coordinator.receive(SENDER, failed, 0))


def test_a_rollout_cannot_refute_what_others_say() -> None:
    coordinator = joining()
    session = session_of(coordinator)
    coordinator.receive(A, joined(session), 0)
    assert not suspects(coordinator.receive(B, refuted(session), 0))


def test_a_join_that_failed_is_no_claim() -> None:
    coordinator = joining()
    session = session_of(coordinator)
    coordinator.receive(A, Ack(session, AckPhase.JOIN, error="address in use"), 0)
    assert not suspects(coordinator.receive(SENDER, refuted(session), 0))


def test_the_newest_joins_are_kept_and_no_more() -> None:
    claims, sessions = JoinClaims(), [SessionId(1, 1, n) for n in range(KEPT_JOINS + 1)]
    for session in sessions:
        claims.begin(session)
        claims.claim(session, A)
    assert [len(claims.refute(session)) for session in sessions] == [0] + [1] * KEPT_JOINS


def test_a_trainer_rank_reports_what_a_join_shows_also_after_its_session() -> None:
    rank, first, second = MemberMachine(), SessionId(1, 1, 1), SessionId(1, 1, 2)
    rank.receive(Prepare(first, (), 1))
    assert rank.receive(Join(first)) == [JoinEngine(first, (), 1)]
    rank.receive(Prepare(second, (), 1))
    assert rank.joined(first, error="aborted") == []
    said = rank.joined(first, error="aborted", none_joined=True)
    ack = Ack(first, AckPhase.JOIN, error="aborted", none_joined=True)
    assert said == [SendToCoordinator(ack)]
