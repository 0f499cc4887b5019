"""The coordinator's machine: sessions form, survive losses, gather joins, publish versions."""

import pytest

from rollcall_protocol.membership.coordinator_effects import (
    CloseStream,
    CoordinatorSuperseded,
    RosterRefusedError,
)
from rollcall_protocol.membership.session_formation import FormationPhase
from rollcall_protocol.wire.ids import Lineage, SessionId, Version
from rollcall_protocol.wire.job_snapshot import MemberState, SessionCause
from rollcall_protocol.wire.messages import Ack, AckPhase, SessionRefused
from tests.unit.rollcall_protocol.membership.simulated_group import (
    MANIFEST,
    TIMEOUTS,
    SimulatedGroup,
    hello,
    machine,
    roster,
)


def running(*pods: str) -> SimulatedGroup:
    group = SimulatedGroup(seed=0)
    group.push(*pods)
    for pod in pods:
        group.start(pod)
    group.publish()
    group.settle()
    group.assert_converged()
    return group


def test_a_job_starts_with_one_session_and_the_first_version() -> None:
    group = running("a", "b")
    assert group.session.attempt == 1
    assert [version.number for version in group.published] == [1]


def test_a_loss_forms_the_next_attempt_at_once_without_a_new_epoch() -> None:
    group = running("a", "b", "c")
    before, clock = group.session, group.now
    group.kill(next(w for w in group.workers.values() if w.pod == "b"))
    assert group.session > before
    assert group.session.epoch == before.epoch
    while group.step():
        pass
    assert group.coordinator.forming is FormationPhase.STABLE
    assert group.now == clock, "no deadline had to pass"
    assert group.formed[-1].cause is SessionCause.MEMBER_LOST
    assert len(group.coordinator.seated) == 2


def test_a_storm_of_losses_ends_in_one_usable_session_of_the_remaining_members() -> None:
    group = running("a", "b", "c", "d", "e")
    before, clock = len(group.formed), group.now
    for worker in [w for w in group.workers.values() if w.pod in "bde"]:
        group.kill(worker)
        group.step()
    while group.step():
        pass
    assert group.now == clock, "no deadline had to pass"
    assert len(group.formed) == before + 1
    assert [m.pod_uid for m in group.coordinator.seated] == ["uid-a", "uid-c"]


@pytest.mark.parametrize("moves", range(0, 24, 3))
def test_a_loss_while_a_version_is_being_sent_resends_it_to_the_rest(moves: int) -> None:
    group = running("a", "b", "c")
    clock = group.now
    group.publish()
    for _ in range(moves):
        group.step()
    group.kill(next(w for w in group.workers.values() if w.pod == "c"))
    while group.step():
        pass
    assert group.now == clock, "no deadline had to pass"
    assert group.published[-1].number == 2
    held = {w.machine.held for w in group.workers.values() if w.pod in {"a", "b"}}
    assert held == {group.published[-1]}


def test_a_scale_up_is_one_session_of_newcomers_that_have_caught_up() -> None:
    group = running("a")
    rebuilds = group.coordinator.formation.rebuilds
    group.push("a", "b", "c", "d")
    for pod in "bcd":
        group.start(pod)
    group.settle()
    group.assert_converged()
    assert group.coordinator.formation.rebuilds == rebuilds + 1


def test_a_newcomer_that_never_registers_does_not_hold_the_others_up() -> None:
    group = running("a")
    group.push("a", "ghost")
    group.publish()
    group.settle()
    assert group.coordinator.formed
    assert len(group.coordinator.seated) == 1
    assert group.published[-1].number == 2


def test_versions_that_come_faster_than_others_are_awaited_do_not_keep_a_newcomer_out() -> None:
    group = running("a")
    group.push("a", "b", "ghost")
    group.start("b")
    for _ in range(12):  # no time passes, so `settle` for the missing one never ends
        while group.step():
            pass
        group.publish()
    assert [member.pod_uid for member in group.coordinator.seated] == ["uid-a", "uid-b"]


def test_a_roster_that_changes_no_seat_keeps_the_session() -> None:
    group = running("a", "b")
    session, rebuilds = group.session, group.coordinator.formation.rebuilds
    group.push("a", "b", "c")
    group.settle()
    group.push("a", "b")
    group.publish()
    group.settle()
    assert (group.session, group.coordinator.formation.rebuilds) == (session, rebuilds)
    assert group.published[-1].number == 2, "the kept session still publishes"
    group.assert_converged()


def test_the_first_session_of_other_seats_is_of_the_newest_roster() -> None:
    group = running("a")
    group.push("a", "b", "c")
    assert group.session.epoch == 1, "neither b nor c is registered"
    for pod in "bc":
        group.start(pod)
    group.settle()
    assert group.session == SessionId(2, 1, 1)
    cause, detail = group.formed[-1].cause, group.formed[-1].detail
    assert (cause, detail) == (SessionCause.MEMBER_CAUGHT_UP, "b, c")


def test_a_loss_from_a_kept_session_forms_one_of_the_newest_roster() -> None:
    group = running("a", "b")
    group.push("a", "b", "c")
    group.kill(next(w for w in group.workers.values() if w.pod == "b"))
    assert group.session == SessionId(2, 1, 1)


def test_a_seat_that_leaves_the_roster_ends_the_session_at_once() -> None:
    group = running("a", "b")
    group.push("a", "ghost")
    assert group.session == SessionId(2, 1, 1), "it does not wait for ghost, which never registers"
    assert [member.pod_uid for member in group.coordinator.seated] == ["uid-a"]


def test_a_restarted_coordinator_leads_a_later_session_than_the_one_it_had_kept() -> None:
    group = running("a")
    kept = group.session
    group.push("a", "c")
    assert group.session == kept
    group.restart_coordinator()
    group.settle()
    assert group.session == SessionId(2, 2, 1)
    assert group.session > kept


def test_a_member_of_an_epoch_that_the_coordinator_was_given_does_not_supersede_it() -> None:
    group = running("a")
    (worker,) = (w for w in group.workers.values() if w.pod == "a")
    kept = group.session
    for _ in range(2):
        group.push("a", "c")
    assert group.session == kept, "epoch 3 changed no seat"
    between = SessionRefused(kept, held=SessionId(3, 1, 1))
    effects = group.coordinator.receive(worker.id, between, group.now)
    assert not any(isinstance(effect, CoordinatorSuperseded) for effect in effects)
    assert group.session == SessionId(3, 1, 1), "it forms the next session, without that member"
    later = SessionId(4, 1, 1)
    effects = group.coordinator.receive(worker.id, SessionRefused(kept, held=later), group.now)
    assert CoordinatorSuperseded(later, worker.id) in effects


def test_a_worker_that_restarts_in_its_pod_is_another_member_and_catches_up() -> None:
    group = running("a", "b")
    group.kill(next(w for w in group.workers.values() if w.pod == "b"))
    again = group.start("b")
    state = {report.pod: report.state for report in group.coordinator.reports()}
    assert state["b"] is MemberState.CATCHING_UP
    group.settle()
    group.assert_converged()
    assert [version.number for version in again.serves] == [1]


def test_a_silent_member_is_left_out_after_its_bound() -> None:
    group = running("a", "b")
    stopped = next(w for w in group.workers.values() if w.pod == "b")
    group.kill(stopped, noticed=False)
    group.publish()
    group.settle()
    assert [m.pod_uid for m in group.coordinator.seated] == ["uid-a"]
    assert group.published[-1].number == 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (roster(1, "a"), "epoch 1 is older than 2"),
        (roster(2, "a", "z"), "epoch 2 is known with another roster"),
        (roster(3, "a", coordinator="other"), "names another coordinator"),
    ],
)
def test_a_roster_that_must_not_count_is_refused(wrong: object, message: str) -> None:
    coordinator = machine()
    coordinator.push_roster(roster(2, "a", "b"), 0)
    with pytest.raises(RosterRefusedError, match=message) as caught:
        coordinator.push_roster(wrong, 1)  # type: ignore[arg-type]
    assert caught.value.epoch == 2
    assert coordinator.push_roster(roster(2, "b", "a"), 2) == [], "the same again is accepted"


def test_a_coordinator_whose_members_follow_a_later_epoch_steps_down() -> None:
    group = running("a")
    (worker,) = (w for w in group.workers.values() if w.pod == "a")
    mine = group.session
    later = SessionId(mine.epoch + 1, 1, 1)
    effects = group.coordinator.receive(worker.id, SessionRefused(mine, held=later), group.now)
    assert CoordinatorSuperseded(later, worker.id) in effects
    same_epoch = SessionId(mine.epoch, 1, mine.attempt + 1)
    effects = group.coordinator.receive(worker.id, SessionRefused(mine, held=same_epoch), group.now)
    assert not any(isinstance(effect, CoordinatorSuperseded) for effect in effects)


def test_of_two_incarnations_of_a_pod_the_running_one_registers_again() -> None:
    # The dead one's Hello was read last: its stream had been accepted, but not served yet.
    coordinator = machine()
    coordinator.push_roster(roster(1, "a"), 0)
    coordinator.hello(hello("a", boot="alive"), 1)
    effects = coordinator.hello(hello("a", boot="dead"), 2)
    assert [e.to.boot_id for e in effects if isinstance(e, CloseStream)] == ["alive"]
    effects = coordinator.hello(hello("a", boot="alive"), 3)
    assert [e.to.boot_id for e in effects if isinstance(e, CloseStream)] == ["dead"]
    assert coordinator.members.by_pod["uid-a"].id.boot_id == "alive"


def test_a_version_does_not_wait_for_a_member_that_left_the_roster() -> None:
    group = running("a", "b")
    group.publish()
    while not all(worker.transfer for worker in group.workers.values()):
        group.step()
    for worker in group.workers.values():
        assert worker.transfer is not None
        ack = Ack(worker.transfer[0], AckPhase.STAGE, worker.transfer[1])
        group.run(group.coordinator.receive(worker.id, ack, group.now))
    kept = next(w for w in group.workers.values() if w.pod == "a")
    version = group.coordinator.current
    group.push("a")
    assert group.publishing, "the one that stays has not acknowledged yet"
    ack = Ack(group.session, AckPhase.COMMIT, version)
    group.run(group.coordinator.receive(kept.id, ack, group.now))
    assert group.published[-1] == version


def test_a_member_overtaken_while_it_waited_catches_up_before_it_gets_a_seat() -> None:
    v1 = Version(Lineage(1, 1), 1)
    coordinator = machine(max_staleness=0)
    coordinator.push_roster(roster(1, "a", "b", "c"), 0)
    coordinator.publish(v1, MANIFEST, 0)
    coordinator.hello(hello("b", held=v1), 0)
    coordinator.hello(hello("a", held=v1), 0)
    # A COMMIT that neither of them got.
    coordinator.members.committed(Version(v1.lineage, 2), MANIFEST)
    coordinator.tick(TIMEOUTS.settle)
    assert coordinator.seated == ()


def test_a_member_that_is_not_on_the_roster_gets_no_seat() -> None:
    coordinator = machine()
    coordinator.push_roster(roster(1), 0)
    coordinator.hello(hello("outsider"), 1)
    coordinator.tick(10)
    assert coordinator.seated == ()


@pytest.mark.parametrize("seed", range(200))
def test_random_faults_break_no_invariant_and_the_group_converges(seed: int) -> None:
    group = SimulatedGroup(seed)
    names = ["a", "b", "c"]
    group.push(*names)
    for pod in names:
        group.start(pod)
    for _ in range(500):
        fault = group.random.random()
        rollouts = [w for w in group.workers.values() if w.pod != "trainer"]
        if fault < 0.02 and rollouts:
            group.kill(group.random.choice(rollouts), noticed=group.random.random() < 0.7)
        elif fault < 0.04:
            group.push(*group.random.sample([*names, "d"], k=group.random.randint(0, 4)))
        elif fault < 0.06:
            group.start(group.random.choice([*names, "d"]))
        elif fault < 0.08 and rollouts:
            worker = group.random.choice(rollouts)
            group.run(group.coordinator.lost(worker.id, "reset", group.now))
            group.connect(worker)
        elif fault < 0.09:
            group.restart_coordinator()
        elif fault < 0.2:
            group.publish()
        elif not group.step():
            group.pass_time()
    # Faults stop: every pod of a last roster runs, and one more version reaches all of them.
    group.settle()
    group.push(*names)
    for pod in names:
        group.start(pod)
    group.settle()
    group.publish()
    group.settle()
    group.assert_converged()
