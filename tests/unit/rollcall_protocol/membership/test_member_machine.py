"""A member's machine: older sessions have no effect, versions never go back, nothing is mixed."""

import pytest

from rollcall_protocol.membership.member_machine import (
    AbortEngine,
    ApplyVersion,
    FetchVersion,
    JoinEngine,
    MemberEffect,
    MemberMachine,
    SendToCoordinator,
)
from rollcall_protocol.wire.ids import Lineage, SessionId, Version
from rollcall_protocol.wire.messages import (
    Ack,
    AckPhase,
    CatchUp,
    CaughtUp,
    Commit,
    Join,
    Prepare,
    SessionReady,
    SessionRefused,
    Stage,
)
from tests.unit.rollcall_protocol.membership.simulated_group import MANIFEST

OLD, NEW = SessionId(2, 1, 1), SessionId(2, 1, 2)
V1, V2 = Version(Lineage(1, 1), 1), Version(Lineage(1, 1), 2)


def member(session: SessionId = NEW, *, holds: Version | None = None) -> MemberMachine:
    machine = MemberMachine()
    if holds is not None:
        machine.applied(holds, None)
    machine.receive(Prepare(session, ()))
    return machine


def only_ack(effects: list[MemberEffect]) -> Ack:
    (reply,) = effects
    assert isinstance(reply, SendToCoordinator)
    assert isinstance(reply.message, Ack)
    return reply.message


@pytest.mark.parametrize(
    "message",
    [
        Prepare(OLD, ()),
        Join(OLD),
        SessionReady(OLD),
        Stage(OLD, V2, MANIFEST),
        Commit(OLD, V2),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_of_an_older_session_is_refused_without_effect(message: object) -> None:
    machine = member(NEW, holds=V1)
    assert machine.receive(message) == [SendToCoordinator(SessionRefused(OLD, held=NEW))]  # type: ignore[arg-type]
    assert (machine.session, machine.held, machine.ready) == (NEW, V1, False)


def test_a_newer_session_aborts_the_engine_of_the_older_one() -> None:
    machine = member(OLD)
    effects = machine.receive(Prepare(NEW, ()))
    assert effects == [AbortEngine(), SendToCoordinator(Ack(NEW, AckPhase.PREPARE))]
    assert machine.receive(Prepare(NEW, ())) == [SendToCoordinator(Ack(NEW, AckPhase.PREPARE))], (
        "a doubled message"
    )


def test_a_session_that_was_never_prepared_is_not_joined() -> None:
    ack = only_ack(member(OLD).receive(Join(NEW)))
    assert ack.error == "session was not prepared here"


def test_slow_work_of_an_older_session_is_not_acknowledged() -> None:
    machine = member(OLD)
    assert machine.receive(Join(OLD)) == [JoinEngine(OLD, (), 1)]
    machine.receive(Prepare(NEW, ()))
    assert machine.joined(OLD) == []
    assert machine.staged(OLD, V2) == []


def test_a_version_is_served_only_after_it_was_staged_whole() -> None:
    machine = member(holds=V1)
    ack = only_ack(machine.receive(Commit(NEW, V2)))
    assert "has not staged it" in ack.error
    machine.staged(NEW, V2, error="digest", own_fault=True)
    ack = only_ack(machine.receive(Commit(NEW, V2)))
    assert "has not staged it" in ack.error
    machine.staged(NEW, V2)
    assert machine.receive(Commit(NEW, V2)) == [ApplyVersion(V2, NEW)]
    assert machine.applied(V2, NEW) == [SendToCoordinator(Ack(NEW, AckPhase.COMMIT, V2))]
    assert machine.held == V2


def test_what_was_staged_in_an_older_session_is_not_committed_in_a_newer_one() -> None:
    machine = member(OLD)
    machine.staged(OLD, V2)
    machine.receive(Prepare(NEW, ()))
    ack = only_ack(machine.receive(Commit(NEW, V2)))
    assert "has not staged it" in ack.error


def test_a_served_version_never_goes_back() -> None:
    machine = member(holds=V2)
    ack = only_ack(machine.receive(Stage(NEW, V1, MANIFEST)))
    assert "newer" in ack.error
    assert machine.receive(CatchUp(V1, MANIFEST, ())) == [SendToCoordinator(CaughtUp(V2))]
    assert machine.fetched(V1) == [SendToCoordinator(CaughtUp(V2))]


def test_a_version_of_a_later_trainer_incarnation_is_newer_whatever_its_number() -> None:
    restarted = Version(Lineage(1, 2), 0)
    assert member(holds=V2).receive(CatchUp(restarted, MANIFEST, ("d",))) == [
        FetchVersion(restarted, MANIFEST, ("d",))
    ]


def test_a_failed_apply_keeps_the_old_version_and_is_reported() -> None:
    machine = member(holds=V1)
    machine.staged(NEW, V2)
    machine.receive(Commit(NEW, V2))
    ack = only_ack(machine.applied(V2, NEW, error="out of memory"))
    assert ack.own_fault
    assert machine.held == V1


def test_two_versions_are_not_applied_at_once() -> None:
    machine = member()
    machine.staged(NEW, V1)
    assert machine.receive(Commit(NEW, V1)) == [ApplyVersion(V1, NEW)]
    machine.receive(
        CatchUp(V2, MANIFEST, ("d",))
    )  # the COMMIT took too long, and V2 is current by now
    assert machine.fetched(V2) == [], "it waits: whichever ended last would be served"
    assert machine.applied(V1, NEW) == [
        SendToCoordinator(Ack(NEW, AckPhase.COMMIT, V1)),
        ApplyVersion(V2, None),
    ]
    assert machine.applied(V2, None) == [SendToCoordinator(CaughtUp(V2))]
    assert machine.held == V2


def test_a_fetch_takes_the_place_of_what_a_session_has_staged() -> None:
    machine = member()
    machine.staged(NEW, V2)
    machine.fetched(V1)  # asked for before the session: there is but one stage
    assert machine.receive(Commit(NEW, V2)) == []
    caught_up, refused = machine.applied(V1, None)
    assert caught_up == SendToCoordinator(CaughtUp(V1))
    assert "has not staged it" in only_ack([refused]).error
