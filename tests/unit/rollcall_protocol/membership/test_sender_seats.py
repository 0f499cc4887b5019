"""Several senders: the trainer's other ranks take seats of their own, all of them or none."""

from dataclasses import replace

from rollcall_protocol.membership.coordinator_effects import (
    CloseStream,
    CoordinatorEffect,
    SendMessage,
)
from rollcall_protocol.membership.coordinator_machine import CoordinatorMachine
from rollcall_protocol.membership.session_formation import FormationPhase
from rollcall_protocol.pod_contract import PARTS_PORT, weights_port
from rollcall_protocol.wire.ids import MemberId, Version
from rollcall_protocol.wire.messages import Ack, AckPhase, CatchUp, Hello, Prepare, SessionReady
from tests.unit.rollcall_protocol.membership.simulated_group import (
    MANIFEST,
    SENDER,
    hello,
    machine,
    roster,
)

SECOND = MemberId("uid-trainer-1", "b1")


def second_sender() -> Hello:
    return replace(hello("trainer-1"), sender=1, weights_port=PARTS_PORT)


def with_a_rollout() -> CoordinatorMachine:
    coordinator = machine(senders=2)
    coordinator.push_roster(roster(1, "a"), 0)
    coordinator.hello(hello("a"), 0)
    return coordinator


def prepares(effects: list[CoordinatorEffect]) -> dict[MemberId, Prepare]:
    return {
        effect.to: effect.message
        for effect in effects
        if isinstance(effect, SendMessage) and isinstance(effect.message, Prepare)
    }


def formed(coordinator: CoordinatorMachine, now: float = 1) -> list[CoordinatorEffect]:
    """Acknowledge everything until the session is usable."""
    assert coordinator.session is not None
    effects: list[CoordinatorEffect] = []
    for phase in (AckPhase.PREPARE, AckPhase.JOIN):
        for member in (*coordinator.senders, *coordinator.seated):
            effects = coordinator.receive(member, Ack(coordinator.session, phase), now)
    return effects


def test_no_session_is_formed_before_every_sender_is_there() -> None:
    coordinator = with_a_rollout()
    coordinator.tick(100)
    assert coordinator.session is None
    asked = prepares(coordinator.hello(second_sender(), 100))
    assert set(asked) == {SENDER, SECOND, MemberId("uid-a", "b1")}


def test_of_two_incarnations_of_a_rank_the_running_one_registers_again() -> None:
    coordinator = with_a_rollout()
    coordinator.hello(second_sender(), 0)
    dead = replace(second_sender(), member=MemberId(SECOND.pod_uid, "dead"))
    effects = coordinator.hello(dead, 1)
    assert [effect.to for effect in effects if isinstance(effect, CloseStream)] == [SECOND]
    coordinator.hello(second_sender(), 2)
    assert coordinator.senders == (SENDER, SECOND)


def test_senders_come_first_and_are_counted() -> None:
    coordinator = machine(senders=2)
    coordinator.hello(second_sender(), 0)
    coordinator.push_roster(roster(1, "a"), 0)
    prepare = prepares(coordinator.hello(hello("a"), 0))[SECOND]
    assert prepare.senders == 2
    assert [seat.member.pod_uid for seat in prepare.seats] == [
        SENDER.pod_uid,
        "uid-trainer-1",
        "uid-a",
    ]


def test_parts_are_fetched_where_each_rank_serves_its_own() -> None:
    """Ranks of one pod have one address."""
    coordinator = machine(senders=2)
    port = weights_port(1)
    coordinator.hello(replace(second_sender(), address="10.0.0.1", weights_port=port), 0)
    first, second = coordinator.formation.senders.donors.split("+")
    assert first.endswith(":7100")
    assert second == f"10.0.0.1:{port}"
    assert port == PARTS_PORT + 1


def test_a_session_is_usable_when_all_senders_have_joined_too() -> None:
    coordinator = with_a_rollout()
    coordinator.hello(second_sender(), 0)
    coordinator.tick(100)
    assert coordinator.session is not None
    for member in (SENDER, *coordinator.seated):
        coordinator.receive(member, Ack(coordinator.session, AckPhase.PREPARE), 1)
    assert coordinator.forming is FormationPhase.PREPARE
    effects = formed(coordinator)
    ready = [
        e.to for e in effects if isinstance(e, SendMessage) and isinstance(e.message, SessionReady)
    ]
    assert SECOND in ready


def test_the_loss_of_a_sender_ends_the_session_until_it_is_back() -> None:
    coordinator = with_a_rollout()
    coordinator.hello(second_sender(), 0)
    coordinator.tick(100)
    formed(coordinator)
    before = coordinator.session
    effects = coordinator.lost(SECOND, "gone", 2)
    assert not prepares(effects)
    assert coordinator.forming is FormationPhase.NONE
    asked = prepares(coordinator.hello(second_sender(), 3))
    assert SECOND in asked
    assert before is not None
    assert asked[SECOND].session > before


def test_a_sender_of_an_unknown_rank_is_refused() -> None:
    outsider = replace(hello("trainer-7"), sender=7)
    effects = machine(senders=2).hello(outsider, 0)
    assert [type(effect) for effect in effects] == [CloseStream]


def test_a_newcomer_gets_the_parts_from_all_senders_when_no_peer_has_them() -> None:
    coordinator = with_a_rollout()
    coordinator.hello(second_sender(), 0)
    coordinator.tick(100)
    formed(coordinator)
    assert coordinator.lineage is not None
    coordinator.members.committed(Version(coordinator.lineage, 1), MANIFEST)
    coordinator.push_roster(roster(2, "a", "b"), 3)
    (asked,) = [
        effect.message
        for effect in coordinator.hello(hello("b"), 3)
        if isinstance(effect, SendMessage) and isinstance(effect.message, CatchUp)
    ]
    assert asked.donors == ("ip-trainer:7100+ip-trainer-1:7100",)
