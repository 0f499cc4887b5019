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
from tests.unit.rollcall_protocol.world import MANIFEST, TIMING, World, hello, machine, roster


def running(*pods: str) -> World:
    world = World(seed=0)
    world.push(*pods)
    for pod in pods:
        world.start(pod)
    world.publish()
    world.settle()
    world.assert_converged()
    return world


def test_a_job_starts_with_one_session_and_the_first_version() -> None:
    world = running("a", "b")
    assert world.session.attempt == 1
    assert [version.number for version in world.published] == [1]


def test_a_loss_forms_the_next_attempt_at_once_without_a_new_epoch() -> None:
    world = running("a", "b", "c")
    before, clock = world.session, world.now
    world.kill(next(w for w in world.workers.values() if w.pod == "b"))
    assert world.session > before
    assert world.session.epoch == before.epoch
    while world.step():
        pass
    assert world.coordinator.forming is FormationPhase.STABLE
    assert world.now == clock, "no deadline had to pass"
    assert world.formed[-1].cause is SessionCause.MEMBER_LOST
    assert len(world.coordinator.seated) == 2


def test_a_storm_of_losses_ends_in_one_usable_session_of_those_who_are_left() -> None:
    world = running("a", "b", "c", "d", "e")
    before, clock = len(world.formed), world.now
    for worker in [w for w in world.workers.values() if w.pod in "bde"]:
        world.kill(worker)
        world.step()
    while world.step():
        pass
    assert world.now == clock, "no deadline had to pass"
    assert len(world.formed) == before + 1
    assert [m.pod_uid for m in world.coordinator.seated] == ["uid-a", "uid-c"]


@pytest.mark.parametrize("moves", range(0, 24, 3))
def test_a_loss_while_a_version_is_being_sent_resends_it_to_the_rest(moves: int) -> None:
    world = running("a", "b", "c")
    clock = world.now
    world.publish()
    for _ in range(moves):
        world.step()
    world.kill(next(w for w in world.workers.values() if w.pod == "c"))
    while world.step():
        pass
    assert world.now == clock, "no deadline had to pass"
    assert world.published[-1].number == 2
    held = {w.machine.held for w in world.workers.values() if w.pod in {"a", "b"}}
    assert held == {world.published[-1]}


def test_a_scale_up_is_one_session_of_newcomers_that_have_caught_up() -> None:
    world = running("a")
    rebuilds = world.coordinator.rebuilds
    world.push("a", "b", "c", "d")
    for pod in "bcd":
        world.start(pod)
    world.settle()
    world.assert_converged()
    assert world.coordinator.rebuilds == rebuilds + 1


def test_a_newcomer_that_never_registers_does_not_hold_the_others_up() -> None:
    world = running("a")
    world.push("a", "ghost")
    world.publish()
    world.settle()
    assert world.session.epoch == 2
    assert len(world.coordinator.seated) == 1
    assert world.published[-1].number == 2


def test_versions_that_come_faster_than_others_are_awaited_do_not_keep_a_newcomer_out() -> None:
    world = running("a")
    world.push("a", "b", "ghost")
    world.start("b")
    for _ in range(12):  # no time passes, so nobody has waited for the one that never comes
        while world.step():
            pass
        world.publish()
    assert [member.pod_uid for member in world.coordinator.seated] == ["uid-a", "uid-b"]


def test_a_worker_that_restarts_in_its_pod_is_another_member_and_catches_up() -> None:
    world = running("a", "b")
    world.kill(next(w for w in world.workers.values() if w.pod == "b"))
    again = world.start("b")
    state = {report.pod: report.state for report in world.coordinator.reports()}
    assert state["b"] is MemberState.CATCHING_UP
    world.settle()
    world.assert_converged()
    assert [version.number for version in again.serves] == [1]


def test_a_silent_member_is_left_out_after_its_bound() -> None:
    world = running("a", "b")
    stopped = next(w for w in world.workers.values() if w.pod == "b")
    world.kill(stopped, noticed=False)
    world.publish()
    world.settle()
    assert [m.pod_uid for m in world.coordinator.seated] == ["uid-a"]
    assert world.published[-1].number == 2


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
    world = running("a")
    (worker,) = (w for w in world.workers.values() if w.pod == "a")
    mine = world.session
    later = SessionId(mine.epoch + 1, 1, 1)
    effects = world.coordinator.receive(worker.id, SessionRefused(mine, held=later), world.now)
    assert CoordinatorSuperseded(later) in effects
    same_epoch = SessionId(mine.epoch, 1, mine.attempt + 1)
    effects = world.coordinator.receive(worker.id, SessionRefused(mine, held=same_epoch), world.now)
    assert not any(isinstance(effect, CoordinatorSuperseded) for effect in effects)


def test_of_two_lives_of_a_pod_the_one_that_lives_registers_again() -> None:
    # The dead one's Hello was read last: its stream had been accepted, but not served yet.
    coordinator = machine()
    coordinator.push_roster(roster(1, "a"), 0)
    coordinator.hello(hello("a", boot="alive"), 1)
    effects = coordinator.hello(hello("a", boot="dead"), 2)
    assert [e.to.boot_id for e in effects if isinstance(e, CloseStream)] == ["alive"]
    effects = coordinator.hello(hello("a", boot="alive"), 3)
    assert [e.to.boot_id for e in effects if isinstance(e, CloseStream)] == ["dead"]
    assert coordinator.members.by_pod["uid-a"].id.boot_id == "alive"


def test_a_version_waits_for_nobody_who_has_left_the_roster() -> None:
    world = running("a", "b")
    world.publish()
    while not all(worker.transfer for worker in world.workers.values()):
        world.step()
    for worker in world.workers.values():
        assert worker.transfer is not None
        ack = Ack(worker.transfer[0], AckPhase.STAGE, worker.transfer[1])
        world.run(world.coordinator.receive(worker.id, ack, world.now))
    kept = next(w for w in world.workers.values() if w.pod == "a")
    version = world.coordinator.current
    world.push("a")
    assert world.publishing, "the one that stays has not acknowledged yet"
    ack = Ack(world.session, AckPhase.COMMIT, version)
    world.run(world.coordinator.receive(kept.id, ack, world.now))
    assert world.published[-1] == version


def test_who_was_overtaken_while_it_waited_catches_up_before_it_sits() -> None:
    v1 = Version(Lineage(1, 1), 1)
    coordinator = machine(max_staleness=0)
    coordinator.push_roster(roster(1, "a", "b", "c"), 0)
    coordinator.publish(v1, MANIFEST, 0)
    coordinator.hello(hello("b", held=v1), 0)
    coordinator.hello(hello("a", held=v1), 0)
    coordinator.members.current = Version(v1.lineage, 2)  # a COMMIT that neither of them got
    coordinator.tick(TIMING.settle)
    assert coordinator.seated == ()


def test_who_is_not_on_the_roster_sits_in_no_session() -> None:
    coordinator = machine()
    coordinator.push_roster(roster(1), 0)
    coordinator.hello(hello("stranger"), 1)
    coordinator.tick(10)
    assert coordinator.seated == ()


@pytest.mark.parametrize("seed", range(200))
def test_random_faults_break_no_invariant_and_the_group_converges(seed: int) -> None:
    world = World(seed)
    names = ["a", "b", "c"]
    world.push(*names)
    for pod in names:
        world.start(pod)
    for _ in range(500):
        fault = world.random.random()
        rollouts = [w for w in world.workers.values() if w.pod != "trainer"]
        if fault < 0.02 and rollouts:
            world.kill(world.random.choice(rollouts), noticed=world.random.random() < 0.7)
        elif fault < 0.04:
            world.push(*world.random.sample([*names, "d"], k=world.random.randint(0, 4)))
        elif fault < 0.06:
            world.start(world.random.choice([*names, "d"]))
        elif fault < 0.08 and rollouts:
            worker = world.random.choice(rollouts)
            world.run(world.coordinator.lost(worker.id, "reset", world.now))
            world.connect(worker)
        elif fault < 0.09:
            world.restart_coordinator()
        elif fault < 0.2:
            world.publish()
        elif not world.step():
            world.pass_time()
    # Faults stop: every pod of a last roster runs, and one more version reaches all of them.
    world.settle()
    world.push(*names)
    for pod in names:
        world.start(pod)
    world.settle()
    world.publish()
    world.settle()
    world.assert_converged()
