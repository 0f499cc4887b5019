"""A delta is sent to a session whose members all serve its base, else the whole version."""

from rollcall_protocol.membership.coordinator_effects import CoordinatorEffect, SendMessage
from rollcall_protocol.membership.coordinator_machine import CoordinatorMachine
from rollcall_protocol.wire.ids import Version
from rollcall_protocol.wire.messages import Ack, AckPhase, Stage, WeightDelta
from rollcall_protocol.wire.weight_manifest import WeightManifest
from tests.unit.rollcall_protocol.membership.simulated_group import SENDER, hello, machine, roster
from tests.unit.rollcall_protocol.membership.test_sender_seats import formed
from tests.unit.rollcall_protocol.wire.made_up_digests import made_up

WHOLE, SHORT = WeightManifest((), 100, 100, made_up(1)), WeightManifest((), 4, 100, made_up(2))


def staged(effects: list[CoordinatorEffect]) -> list[Stage]:
    return [
        e.message for e in effects if isinstance(e, SendMessage) and isinstance(e.message, Stage)
    ]


def published(*held: int) -> tuple[list[Stage], CoordinatorMachine, WeightDelta]:
    """Version 2 as a delta from 1, to rollouts that serve these versions."""
    coordinator = machine(max_staleness=5)
    pods = [f"pod-{index}" for index in range(len(held))]
    coordinator.push_roster(roster(1, *pods), 0)
    assert coordinator.lineage is not None
    versions = [Version(coordinator.lineage, number) for number in range(4)]
    for pod, number in zip(pods, held, strict=True):
        coordinator.hello(hello(pod, held=versions[number]), 0)
    formed(coordinator)
    delta = WeightDelta(versions[1], SHORT)
    return staged(coordinator.publish(versions[2], WHOLE, 2, delta=delta)), coordinator, delta


def test_members_that_all_serve_the_base_are_sent_the_delta() -> None:
    stages, _, delta = published(1, 1)
    assert [stage.delta for stage in stages] == [delta] * 3, "the sender gets it too"
    assert {stage.manifest for stage in stages} == {WHOLE}


def test_one_member_with_another_base_makes_it_whole_for_all() -> None:
    stages, _, _ = published(1, 0)
    assert [stage.delta for stage in stages] == [None] * 3


def test_after_a_failure_the_whole_version_is_sent() -> None:
    stages, coordinator, _ = published(1)
    ack = Ack(stages[0].session, AckPhase.STAGE, stages[0].version, error="does not fit")
    coordinator.receive(SENDER, ack, 3)
    again = staged(formed(coordinator, 3))
    assert [stage.delta for stage in again] == [None] * 2
