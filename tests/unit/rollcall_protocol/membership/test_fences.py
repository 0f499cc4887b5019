"""What must not count: foreign workers, older incarnations, members that fell behind or leave."""

from dataclasses import replace

import pytest

from rollcall_protocol.membership.coordinator_effects import (
    CloseStream,
    CoordinatorEffect,
    MemberSuspected,
    RosterRefusedError,
    SendMessage,
)
from rollcall_protocol.membership.coordinator_machine import CoordinatorMachine
from rollcall_protocol.membership.member_machine import MemberMachine
from rollcall_protocol.membership.member_table import MAX_CATCH_UPS, MemberRecord, MemberTable
from rollcall_protocol.membership.session_formation import MAX_ENGINE_FAILURES, FormationPhase
from rollcall_protocol.membership.stretched_bounds import StretchedBound
from rollcall_protocol.wire.ids import Lineage, MemberId, SessionId, Version
from rollcall_protocol.wire.job_snapshot import MemberState, SuspicionCause
from rollcall_protocol.wire.messages import (
    Ack,
    AckPhase,
    CatchUp,
    Draining,
    Prepare,
    SessionReady,
    SessionRefused,
    Stage,
)
from tests.unit.rollcall_protocol.membership.simulated_group import (
    MANIFEST,
    SENDER,
    TIMEOUTS,
    hello,
    machine,
    roster,
)

A, B = MemberId("uid-a", "b1"), MemberId("uid-b", "b1")
LINEAGE = Lineage(1, 1)


def version(number: int, lineage: Lineage = LINEAGE) -> Version:
    return Version(lineage, number)


def table(*, max_staleness: int = 1) -> MemberTable:
    """Members a and b, in sync with version 5."""
    made = MemberTable(
        job_uid="job",
        group="default",
        coordinator_uid="trainer",
        max_staleness=max_staleness,
        fallback_donor="trainer:7100",
        catch_up=StretchedBound(1),
    )
    made.take_roster(roster(1, "a", "b"))
    made.committed(version(5), MANIFEST)
    for pod in "ab":
        greeting = hello(pod, held=version(5))
        made.by_pod[f"uid-{pod}"] = MemberRecord(
            greeting, MemberState.IN_SYNC, version(5), ready=True
        )
    return made


def messages(effects: list[CoordinatorEffect]) -> list[tuple[MemberId, object]]:
    return [(effect.to, effect.message) for effect in effects if isinstance(effect, SendMessage)]


def acknowledge(coordinator: CoordinatorMachine, phase: AckPhase, *, now: float = 0) -> None:
    """All members acknowledge the phase that is under way."""
    assert coordinator.session is not None
    ack = Ack(coordinator.session, phase)
    for member in (*coordinator.senders, *coordinator.seated):
        coordinator.receive(member, ack, now)


def in_session() -> CoordinatorMachine:
    """A coordinator with a and b in a usable session, before any version."""
    coordinator = machine()
    coordinator.push_roster(roster(1, "a", "b"), 0)
    coordinator.hello(hello("a"), 0)
    coordinator.hello(hello("b"), 0)
    acknowledge(coordinator, AckPhase.PREPARE)
    acknowledge(coordinator, AckPhase.JOIN)
    assert coordinator.forming is FormationPhase.STABLE
    return coordinator


def serving_one() -> CoordinatorMachine:
    """The same, in sync with version 1."""
    coordinator = in_session()
    coordinator.publish(version(1), MANIFEST, 0)
    acknowledge_version(coordinator, AckPhase.STAGE)
    acknowledge_version(coordinator, AckPhase.COMMIT)
    assert coordinator.serving(A)
    assert coordinator.serving(B)
    return coordinator


def acknowledge_version(coordinator: CoordinatorMachine, phase: AckPhase) -> None:
    assert coordinator.session is not None
    members = (*coordinator.senders, *coordinator.seated)
    for member in coordinator.seated if phase is AckPhase.COMMIT else members:
        coordinator.receive(member, Ack(coordinator.session, phase, version(1)), 0)


# --- the table of members ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "current"),
    [
        (version(5), True),
        (version(4), True),
        (version(3), False),
        (version(5, Lineage(1, 2)), False),
        (None, False),
    ],
    ids=["the current one", "one behind", "two behind", "of another lineage", "none"],
)
def test_a_version_may_be_served_up_to_max_staleness_behind_in_its_lineage(
    held: Version | None, current: bool
) -> None:
    assert table(max_staleness=1).is_current(held) is current


def test_a_roster_of_another_job_or_group_is_refused() -> None:
    for foreign in (
        replace(roster(2, "a"), job_uid="other"),
        replace(roster(2, "a"), group="other"),
    ):
        with pytest.raises(RosterRefusedError, match="another job or sync group"):
            table().take_roster(foreign)


def test_only_members_on_the_roster_are_seated() -> None:
    members = table()
    members.by_pod["uid-c"] = MemberRecord(
        hello("c"), MemberState.REGISTERED, version(5), ready=True
    )
    assert [member.hello.pod for member in members.eligible(set())] == ["a", "b"]


@pytest.mark.parametrize("why", ["not on the roster", "disconnected"])
def test_newcomers_that_cannot_take_part_are_not_asked_to_catch_up(why: str) -> None:
    members = table()
    pod = "c" if why == "not on the roster" else "b"
    late = MemberRecord(hello(pod), connected=why != "disconnected")
    members.by_pod[f"uid-{pod}"] = late
    assert members.admit_waiting(0, but={A}) == []
    assert not late.ready


def test_an_earlier_incarnation_of_a_pod_is_not_found() -> None:
    members = table()
    assert members.find(A) is members.by_pod["uid-a"]
    assert members.find(MemberId("uid-a", "b0")) is None


def test_a_newcomer_is_sent_to_members_that_hold_the_version_it_needs() -> None:
    members = table()
    members.by_pod["uid-a"].held = version(4)
    members.take_roster(roster(2, "a", "b", "late"))
    members.by_pod["uid-late"] = MemberRecord(hello("late"))
    (asked,) = members.admit_waiting(0, but={A, B})
    assert isinstance(asked.message, CatchUp)
    assert [donor.partition(":")[0] for donor in asked.message.donors] == ["ip-b", "trainer"]


def test_a_newcomer_that_never_gets_current_is_overdue() -> None:
    members = table()
    late = members.by_pod["uid-b"]
    late.state, late.ready, late.held = MemberState.CATCHING_UP, False, None
    late.catch_ups = MAX_CATCH_UPS
    assert members.overdue(0) == set()
    late.catch_ups += 1
    assert members.overdue(0) == {B}


# --- the coordinator -----------------------------------------------------------------------------


@pytest.mark.parametrize("foreign", [{"job_uid": "other"}, {"group": "other"}])
def test_a_worker_of_another_job_or_group_is_turned_away(foreign: dict[str, str]) -> None:
    coordinator = machine()
    coordinator.push_roster(roster(1, "a"), 0)
    (effect,) = coordinator.hello(replace(hello("a"), **foreign), 0)  # type: ignore[arg-type]
    assert isinstance(effect, CloseStream)
    assert not coordinator.knows("uid-a")


def test_messages_of_an_earlier_incarnation_have_no_effect() -> None:
    coordinator = serving_one()
    coordinator.receive(MemberId("uid-a", "b0"), Draining("asked to", 1), 0)
    assert coordinator.serving(A)


def test_a_draining_rollout_is_given_no_prompts_but_keeps_its_seat() -> None:
    coordinator = serving_one()
    coordinator.receive(A, Draining("asked to", 60), 0)
    assert not coordinator.serving(A)
    assert coordinator.serving(B)
    assert coordinator.seated == (A, B)


def test_a_member_that_follows_a_newer_session_of_the_epoch_is_left_out() -> None:
    coordinator = serving_one()
    session = coordinator.session
    assert session is not None
    newer = replace(session, attempt=session.attempt + 7)
    effects = coordinator.receive(A, SessionRefused(session, newer), 0)
    assert [e.cause for e in effects if isinstance(e, MemberSuspected)] == [SuspicionCause.REFUSED]
    assert coordinator.seated == (B,)


def test_a_member_whose_own_fault_it_was_is_left_out_at_once() -> None:
    coordinator = in_session()
    coordinator.publish(version(1), MANIFEST, 0)
    session = coordinator.session
    assert session is not None
    fault = Ack(session, AckPhase.STAGE, version(1), "digest of bucket 3", own_fault=True)
    effects = coordinator.receive(A, fault, 0)
    (found,) = [e for e in effects if isinstance(e, MemberSuspected)]
    assert (found.member, found.cause) == (A, SuspicionCause.ENGINE_ERROR)
    assert coordinator.seated == (B,)


def test_a_member_that_could_not_commit_catches_up() -> None:
    coordinator = in_session()
    coordinator.publish(version(1), MANIFEST, 0)
    acknowledge_version(coordinator, AckPhase.STAGE)
    session = coordinator.session
    assert session is not None
    failed = Ack(session, AckPhase.COMMIT, version(1), "out of memory", own_fault=True)
    effects = coordinator.receive(A, failed, 0)
    assert coordinator.seated == (B,)
    assert [to for to, message in messages(effects) if isinstance(message, CatchUp)] == [A]


def test_one_version_is_published_at_a_time() -> None:
    coordinator = in_session()
    coordinator.publish(version(1), MANIFEST, 0)
    with pytest.raises(RuntimeError, match="still being published"):
        coordinator.publish(version(2), MANIFEST, 0)


def test_a_version_that_a_loss_interrupted_is_staged_again_in_the_next_session() -> None:
    coordinator = in_session()
    coordinator.publish(version(1), MANIFEST, 0)
    coordinator.lost(B, "connection reset", 0)
    acknowledge(coordinator, AckPhase.PREPARE)
    session = coordinator.session
    assert session is not None
    coordinator.receive(SENDER, Ack(session, AckPhase.JOIN), 0)
    effects = coordinator.receive(A, Ack(session, AckPhase.JOIN), 0)
    staged = [(to, m.session) for to, m in messages(effects) if isinstance(m, Stage)]
    assert staged == [(SENDER, session), (A, session)]


def test_a_newcomer_does_not_interrupt_a_version_that_is_being_sent() -> None:
    coordinator = serving_one()
    coordinator.publish(version(2), MANIFEST, 0)
    session = coordinator.session
    coordinator.push_roster(roster(2, "a", "b", "c"), 1)
    coordinator.hello(hello("c", held=version(1)), 1)
    coordinator.tick(1 + 2 * TIMEOUTS.settle)
    assert coordinator.session == session


def test_the_sender_alone_may_be_silent_and_no_member_is_suspected() -> None:
    coordinator = machine()
    coordinator.push_roster(roster(1, "a"), 0)
    coordinator.hello(hello("a"), 0)
    session = coordinator.session
    assert session is not None
    coordinator.receive(A, Ack(session, AckPhase.PREPARE), 0)
    effects = coordinator.tick(TIMEOUTS.ack_timeout)
    assert not [e for e in effects if isinstance(e, MemberSuspected)]
    assert coordinator.session == replace(session, attempt=session.attempt + 1)
    assert {to for to, message in messages(effects) if isinstance(message, Prepare)} == {SENDER, A}


def test_an_engine_that_fails_repeatedly_makes_members_that_did_not_acknowledge_suspect() -> None:
    coordinator = machine()
    coordinator.push_roster(roster(1, "a", "b"), 0)
    coordinator.hello(hello("a"), 0)
    coordinator.hello(hello("b"), 0)
    found: list[MemberSuspected] = []
    for _ in range(MAX_ENGINE_FAILURES):
        assert not found
        acknowledge(coordinator, AckPhase.PREPARE)
        session = coordinator.session
        assert session is not None
        coordinator.receive(SENDER, Ack(session, AckPhase.JOIN), 0)
        coordinator.receive(A, Ack(session, AckPhase.JOIN), 0)
        error = Ack(session, AckPhase.JOIN, error="address in use")
        effects = coordinator.receive(B, error, 0)
        found = [e for e in effects if isinstance(e, MemberSuspected)]
    assert [(e.member, e.cause) for e in found] == [(B, SuspicionCause.ENGINE_ERROR)]


def test_the_coordinators_own_rank_is_no_seat_for_others() -> None:
    coordinator = machine(senders=2)
    effects = coordinator.hello(replace(hello("intruder"), sender=0), 0)
    assert [effect.to.pod_uid for effect in effects if isinstance(effect, CloseStream)] == [
        "uid-intruder"
    ]
    assert coordinator.senders == (SENDER,)


# --- a member ------------------------------------------------------------------------------------


def test_a_session_that_is_being_formed_is_not_usable_yet() -> None:
    member = MemberMachine()
    first, second = SessionId(1, 1, 1), SessionId(1, 1, 2)
    member.receive(Prepare(first, ()))
    member.receive(SessionReady(first))
    assert member.ready
    member.receive(Prepare(second, ()))
    assert not member.ready
