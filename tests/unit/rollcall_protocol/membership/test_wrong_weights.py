"""Who is named, passed over and excluded when a member gets other weights than the trainer made."""

from rollcall_protocol.membership.coordinator_effects import (
    CoordinatorEffect,
    MemberSuspected,
    SendMessage,
    WrongWeightsReported,
)
from rollcall_protocol.membership.coordinator_machine import CoordinatorMachine
from rollcall_protocol.membership.member_machine import MemberMachine
from rollcall_protocol.membership.member_table import MAX_CATCH_UPS
from rollcall_protocol.wire.ids import Lineage, MemberId, Version
from rollcall_protocol.wire.job_snapshot import SuspicionCause
from rollcall_protocol.wire.messages import Ack, AckPhase, CatchUp, CaughtUp
from tests.unit.rollcall_protocol.membership.simulated_group import (
    MANIFEST,
    SENDER,
    TIMEOUTS,
    hello,
    machine,
    roster,
)

V1 = Version(Lineage(1, 1), 1)
A, B = MemberId("uid-a", "b1"), MemberId("uid-b", "b1")
AT_A, AT_B, AT_C, TRAINER = "ip-a:7072", "ip-b:7072", "ip-c:7072", "trainer:7100"


def in_sync() -> CoordinatorMachine:
    """A coordinator with a and b, which serve version 1; c and d are expected."""
    coordinator = machine()
    coordinator.push_roster(roster(1, "a", "b", "c", "d"), 0)
    coordinator.hello(hello("a"), 0)
    coordinator.hello(hello("b"), 0)
    coordinator.tick(TIMEOUTS.settle)
    for phase in (AckPhase.PREPARE, AckPhase.JOIN):
        answer(coordinator, phase)
    coordinator.publish(V1, MANIFEST, TIMEOUTS.settle)
    return coordinator


def serving() -> CoordinatorMachine:
    coordinator = in_sync()
    answer(coordinator, AckPhase.STAGE)
    answer(coordinator, AckPhase.COMMIT)
    return coordinator


def answer(coordinator: CoordinatorMachine, phase: AckPhase) -> None:
    assert coordinator.session is not None
    version = V1 if phase in {AckPhase.STAGE, AckPhase.COMMIT} else None
    members = coordinator.seated if phase is AckPhase.COMMIT else (SENDER, *coordinator.seated)
    for member in members:
        coordinator.receive(member, Ack(coordinator.session, phase, version), TIMEOUTS.settle)


def wrong_stage(coordinator: CoordinatorMachine, source: MemberId | None) -> Ack:
    assert coordinator.session is not None
    return Ack(
        coordinator.session, AckPhase.STAGE, V1, "wrong digest", own_fault=True, source=source
    )


def suspects(effects: list[CoordinatorEffect]) -> dict[MemberId, SuspicionCause]:
    return {e.member: e.cause for e in effects if isinstance(e, MemberSuspected)}


def donors_of(coordinator: CoordinatorMachine, pod: str) -> tuple[str, ...]:
    """The donors that a newcomer is given."""
    effects = coordinator.hello(hello(pod), TIMEOUTS.settle)
    (asked,) = [
        e.message for e in effects if isinstance(e, SendMessage) and isinstance(e.message, CatchUp)
    ]
    assert asked.manifest == MANIFEST, "what the trainer made"
    return asked.donors


def got_wrong(coordinator: CoordinatorMachine, pod: str, *donors: str) -> list[CoordinatorEffect]:
    """A newcomer fetched the version from another donor, after these."""
    newcomer = MemberId(f"uid-{pod}", "b1")
    return coordinator.receive(newcomer, CaughtUp(V1, wrong_donors=donors), TIMEOUTS.settle)


def test_of_a_reader_and_a_rollout_that_it_got_wrong_weights_from_both_are_excluded() -> None:
    coordinator = in_sync()
    effects = coordinator.receive(A, wrong_stage(coordinator, B), TIMEOUTS.settle)
    wrong = SuspicionCause.WRONG_WEIGHTS
    assert suspects(effects) == {A: wrong, B: wrong}
    assert coordinator.seated == ()


def test_wrong_weights_from_the_trainer_exclude_the_reader_alone() -> None:
    for source in (SENDER, None, A, MemberId("uid-unknown", "b1")):
        coordinator = in_sync()
        effects = coordinator.receive(A, wrong_stage(coordinator, source), TIMEOUTS.settle)
        assert suspects(effects) == {A: SuspicionCause.ENGINE_ERROR}
        assert coordinator.seated == (B,)


def test_a_newcomer_that_cannot_use_the_weights_is_a_suspect_for_what_it_says() -> None:
    coordinator = serving()
    donors_of(coordinator, "c")
    newcomer, error = MemberId("uid-c", "b1"), "WeightMismatchError: w has shape (43, 32)"
    effects: list[CoordinatorEffect] = []
    for _ in range(MAX_CATCH_UPS):
        assert suspects(effects) == {}
        effects = coordinator.receive(newcomer, CaughtUp(V1, error), TIMEOUTS.settle)
    assert suspects(effects) == {newcomer: SuspicionCause.ENGINE_ERROR}
    (report,) = (report for report in coordinator.reports() if report.pod == "c")
    assert report.reason == f"cannot use the weights: {error}"


def test_a_donor_that_one_newcomer_found_wrong_is_named_and_asked_no_more() -> None:
    coordinator = serving()
    assert donors_of(coordinator, "c") == (AT_A, AT_B, TRAINER)
    effects = got_wrong(coordinator, "c", AT_A)
    assert [e for e in effects if isinstance(e, WrongWeightsReported)] == [
        WrongWeightsReported(A, MemberId("uid-c", "b1"))
    ]
    assert suspects(effects) == {}, "the newcomer may be the one that lies"
    assert donors_of(coordinator, "d") == (AT_B, AT_C, TRAINER)


def test_a_donor_that_two_newcomers_found_wrong_is_excluded() -> None:
    coordinator = serving()
    for pod in ("c", "d"):
        assert AT_A in donors_of(coordinator, pod)
    got_wrong(coordinator, "c", AT_A)
    assert suspects(got_wrong(coordinator, "d", AT_A)) == {A: SuspicionCause.WRONG_WEIGHTS}


def test_one_newcomer_that_says_it_twice_excludes_no_donor() -> None:
    coordinator = serving()
    for _ in range(3):
        donors_of(coordinator, "c")
        assert suspects(got_wrong(coordinator, "c", AT_A)) == {}


def test_a_newcomer_accuses_only_donors_that_it_was_given() -> None:
    coordinator = serving()
    for pod in ("c", "d"):
        effects = got_wrong(coordinator, pod, AT_A, TRAINER, "elsewhere:1")
        assert suspects(effects) == {}
    assert donors_of(coordinator, "c") == (AT_A, AT_B, TRAINER)


def test_a_newcomer_reports_its_wrong_donors_whether_it_found_a_right_one_or_not() -> None:
    for error in ("", "no donor gave it"):
        member = MemberMachine()
        replies = member.fetched(V1, error=error, wrong_donors=(AT_A,))
        if not error:
            replies = member.applied(V1, None)
        (reply,) = replies
        assert getattr(reply, "message", None) == CaughtUp(V1, error, (AT_A,))
