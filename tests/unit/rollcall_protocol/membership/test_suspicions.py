"""A suspicion is reported once, with its cause."""

from dataclasses import replace

import pytest

from rollcall_protocol.membership.coordinator_effects import (
    CoordinatorEffect,
    MemberSuspected,
    SendMessage,
    SessionFormed,
)
from rollcall_protocol.membership.coordinator_machine import CoordinatorMachine
from rollcall_protocol.wire.ids import MemberId
from rollcall_protocol.wire.job_snapshot import MemberState, SessionCause
from rollcall_protocol.wire.job_snapshot import SuspicionCause as Cause
from rollcall_protocol.wire.messages import Ack, AckPhase, Join, Prepare
from rollcall_protocol.wire.roster import EpochCause
from tests.unit.rollcall_protocol.membership.simulated_group import (
    SENDER,
    TIMEOUTS,
    hello,
    machine,
    roster,
)

A, B = MemberId("uid-a", "b1"), MemberId("uid-b", "b1")


def suspicions(effects: list[CoordinatorEffect]) -> list[MemberSuspected]:
    return [effect for effect in effects if isinstance(effect, MemberSuspected)]


def acknowledge(
    coordinator: CoordinatorMachine, effects: list[CoordinatorEffect], now: float = 1
) -> list[CoordinatorEffect]:
    """Acknowledge PREPARE and JOIN for all members; returns the other effects."""
    others, waiting = [], list(effects)
    while waiting:
        effect = waiting.pop(0)
        if isinstance(effect, SendMessage) and isinstance(effect.message, (Prepare, Join)):
            phase = AckPhase.PREPARE if isinstance(effect.message, Prepare) else AckPhase.JOIN
            ack = Ack(effect.message.session, phase)
            waiting += coordinator.receive(effect.to, ack, now)
        else:
            others.append(effect)
    return others


@pytest.fixture
def coordinator() -> CoordinatorMachine:
    """In a session with a and b."""
    made = machine()
    made.push_roster(roster(1, "a", "b"), 0)
    made.hello(hello("a"), 0)
    acknowledge(made, made.hello(hello("b"), 0))
    assert made.seated == (A, B)
    return made


@pytest.mark.parametrize("cause", [Cause.CONNECTION_LOST, Cause.HEARTBEAT_MISSED])
def test_a_loss_is_reported_once_with_its_cause_in_report_and_session(
    coordinator: CoordinatorMachine, cause: Cause
) -> None:
    effects = coordinator.lost(B, "why it is", 2, cause=cause)
    assert suspicions(effects) == [MemberSuspected(B, cause, "why it is")]
    report = next(r for r in coordinator.reports() if r.pod == "b")
    assert (report.state, report.cause, report.reason) == (
        MemberState.SUSPECT,
        cause,
        "why it is",
    )
    formed = next(
        e.report for e in acknowledge(coordinator, effects, 2) if isinstance(e, SessionFormed)
    )
    assert formed.cause is SessionCause.MEMBER_LOST
    assert formed.detail == f"b: {cause.value}: why it is"
    assert suspicions(coordinator.lost(B, "again", 3)) == []


def test_a_member_that_comes_back_is_no_suspect(coordinator: CoordinatorMachine) -> None:
    acknowledge(coordinator, coordinator.lost(B, "silent", 2, cause=Cause.HEARTBEAT_MISSED), 2)
    acknowledge(coordinator, coordinator.hello(hello("b"), 3), 3)
    assert coordinator.seated == (A, B)
    assert [(r.state, r.cause) for r in coordinator.reports()] == [
        (MemberState.REGISTERED, None)
    ] * 2


def test_no_answer_counts_from_the_question(coordinator: CoordinatorMachine) -> None:
    coordinator.lost(A, "reset", 10)
    session = coordinator.session
    assert session is not None
    coordinator.receive(SENDER, Ack(session, AckPhase.PREPARE), 10)
    (found,) = suspicions(coordinator.tick(10 + TIMEOUTS.ack_timeout))
    assert (found.member, found.cause, found.since) == (B, Cause.ACK_TIMEOUT, 10)


def test_an_older_incarnation_of_a_pod_has_lost_its_connection(
    coordinator: CoordinatorMachine,
) -> None:
    effects = coordinator.hello(hello("b", boot="b2"), 10)
    assert [(s.member, s.cause) for s in suspicions(effects)] == [(B, Cause.CONNECTION_LOST)]


def test_a_pod_that_the_operator_saw_go_left_the_roster(coordinator: CoordinatorMachine) -> None:
    lost = replace(roster(2, "a"), cause=EpochCause.MEMBER_LOST)
    assert [s.cause for s in suspicions(coordinator.push_roster(lost, 5))] == [Cause.LEFT_ROSTER]


def test_scaling_down_suspects_no_member(coordinator: CoordinatorMachine) -> None:
    fewer = replace(roster(2, "a"), cause=EpochCause.SCALED_DOWN)
    assert suspicions(coordinator.push_roster(fewer, 5)) == []


def test_a_pod_that_does_not_register_is_reported_until_it_does(
    coordinator: CoordinatorMachine,
) -> None:
    coordinator.push_roster(roster(2, "a", "b", "c"), 5)
    coordinator.absent("uid-c", "does not answer", 6)
    coordinator.absent("uid-a", "is here after all", 6)
    coordinator.absent("uid-z", "is not on the roster", 6)
    absent = [r for r in coordinator.reports() if r.state is MemberState.SUSPECT]
    assert [(r.pod, r.cause, r.reason) for r in absent] == [
        ("c", Cause.NOT_REGISTERED, "does not answer")
    ]
    coordinator.hello(hello("c"), 7)
    assert all(r.state is not MemberState.SUSPECT for r in coordinator.reports())
