"""Who is called, and when: losses at once, joins gathered, epochs that never repeat."""

from dataclasses import replace

import pytest

from rollcall_operator.plan.model import ReconcileMemory
from rollcall_protocol.wire.roster import EpochCause
from tests.unit.rollcall_operator.plan.simulator import JobSimulator, lent_pool, writes_anything


def started(changes: dict[str, object] | None = None) -> JobSimulator:
    """A job whose pods are there and do not run yet."""
    simulator = JobSimulator(changes)
    simulator.converge()
    simulator.schedule()
    return simulator


def test_no_roster_without_a_coordinator() -> None:
    simulator = started()
    simulator.run(*simulator.pods_of("bad-cpu"))
    assert simulator.reconcile(60).roster is None


def test_no_roster_while_no_pod_is_eligible() -> None:
    simulator = started()
    simulator.run(simulator.trainer)
    assert simulator.reconcile(60).roster is None


def test_all_that_are_wanted_are_called_at_once() -> None:
    simulator = started()
    simulator.run()
    plan = simulator.reconcile(0.1)
    assert plan.epoch_change
    assert plan.roster is not None
    assert (plan.roster.epoch, plan.roster.cause) == (1, EpochCause.JOB_STARTED)
    assert plan.roster.coordinator_uid == simulator.trainer.uid
    assert len(plan.roster.members) == 2
    assert plan.job_status is not None
    assert plan.job_status["syncGroups"][0]["rosterDigest"] == plan.roster.digest


def test_members_belong_to_the_sync_group_of_their_pool() -> None:
    simulator = started(
        {"spec.weightSync.groups": [{"name": "npu"}], "spec.rollouts[0].syncGroup": "npu"}
    )
    simulator.run()
    roster = simulator.reconcile(0.1).roster
    assert roster is not None
    assert {member.group for member in roster.members} == {"npu"}


def test_a_laggard_is_waited_for_no_longer_than_the_settle_time() -> None:
    simulator = started()
    simulator.run(simulator.trainer, simulator.pods_of("bad-cpu")[0])
    plan = simulator.reconcile()
    assert plan.roster is None
    assert plan.requeue_after == pytest.approx(1.0)
    assert simulator.reconcile(0.5).roster is None
    assert simulator.reconcile(0.5).epoch_change


def test_one_pools_surplus_does_not_stand_for_what_another_lacks() -> None:
    simulator = JobSimulator()
    simulator.pools["lent"] = lent_pool()
    simulator.to_running()
    simulator.scale("lent", 3)
    simulator.converge()
    simulator.schedule()
    simulator.run(simulator.pods_of("lent")[1])
    simulator.scale("bad-cpu", 1)  # its second rollout is still there
    assert not simulator.reconcile().epoch_change, "the third lent rollout is still to come"


def test_each_newcomer_starts_the_settle_time_again_up_to_a_bound() -> None:
    simulator = started({"spec.rollouts[0].replicas": 40})
    simulator.run(simulator.trainer)
    opened_after = None
    for count, pod in enumerate(simulator.pods_of("bad-cpu")):
        simulator.run(pod)
        if simulator.reconcile(0.9 if count else 0).epoch_change:
            opened_after = 0.9 * count
            break
    assert opened_after == pytest.approx(10, abs=1)


def test_without_a_settle_time_every_newcomer_is_called_at_once() -> None:
    simulator = started({"spec.membership.settleSeconds": 0})
    simulator.run(simulator.trainer, simulator.pods_of("bad-cpu")[0])
    assert simulator.reconcile().epoch_change


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"terminating": True}, "terminating"),
        ({"running": False, "exit_code": 137, "exit_message": "OOMKilled"}, "exit code 137"),
        ({"phase": "Failed", "running": False}, "Failed"),
    ],
)
def test_a_loss_counts_at_once_and_is_explained(facts: dict[str, object], why: str) -> None:
    simulator = JobSimulator()
    simulator.to_running()
    simulator.change(simulator.pods_of("bad-cpu")[0], **facts)
    plan = simulator.reconcile()
    assert plan.epoch_change
    assert plan.roster is not None
    assert plan.roster.cause is EpochCause.MEMBER_LOST
    assert len(plan.roster.members) == 1
    assert why in simulator.status["syncGroups"][0]["history"][-1]["message"]


def test_an_epoch_is_opened_exactly_once() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    simulator.change(simulator.pods_of("bad-cpu")[0], terminating=True)
    assert [simulator.reconcile().epoch_change for _ in range(4)] == [True, False, False, False]
    assert simulator.status["epoch"] == 2


def test_a_lost_status_write_opens_the_same_epoch_again() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    before, memory = simulator.observed().job, simulator.memory
    simulator.change(simulator.pods_of("bad-cpu")[0], terminating=True)
    first = simulator.reconcile()
    simulator.job, simulator.memory = before, memory  # the compare-and-swap failed
    again = simulator.reconcile()
    assert first.roster == again.roster


def test_an_operator_that_restarts_hands_out_the_same_epoch_again() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    simulator.memory, simulator.snapshot = ReconcileMemory(), None
    plan = simulator.reconcile(1)
    assert not writes_anything(plan)
    assert plan.roster is not None
    assert plan.roster.epoch == 1
    assert plan.roster.digest == simulator.status["syncGroups"][0]["rosterDigest"]


def test_an_operator_that_restarts_into_a_change_opens_an_epoch_at_once() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    simulator.scale("bad-cpu", 3)
    simulator.converge()
    simulator.schedule()
    simulator.run()
    simulator.memory, simulator.snapshot = ReconcileMemory(), None
    plan = simulator.reconcile()
    assert plan.roster is not None
    assert (plan.roster.epoch, plan.roster.cause) == (2, EpochCause.MEMBERS_JOINED)


def test_a_roster_in_memory_that_status_does_not_know_counts_for_nothing() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    assert simulator.memory.roster is not None
    simulator.memory = replace(simulator.memory, roster=replace(simulator.memory.roster, epoch=9))
    simulator.change(simulator.pods_of("bad-cpu")[0], terminating=True)
    plan = simulator.reconcile()
    assert plan.roster is not None
    assert plan.roster.epoch == 2


def test_a_restart_of_the_coordinators_container_changes_nothing() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    simulator.change(simulator.trainer, running=False, ready=False, exit_code=1, restarts=1)
    plan = simulator.reconcile(1)
    assert not plan.epoch_change
    assert plan.roster is not None
    assert plan.roster.epoch == 1


def test_another_coordinator_pod_is_a_new_epoch_with_all_members() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    del simulator.pods[simulator.trainer.uid]
    assert simulator.reconcile(1).roster is None
    simulator.schedule()
    simulator.run(simulator.trainer)
    plan = simulator.reconcile(1)
    assert plan.roster is not None
    assert plan.roster.cause is EpochCause.COORDINATOR_REPLACED
    assert plan.roster.coordinator_uid == simulator.trainer.uid
    assert len(plan.roster.members) == 2


def test_after_a_pause_of_all_pods_newcomers_are_gathered_again() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    simulator.pods.clear()
    simulator.reconcile(1)
    simulator.schedule()
    first, second = simulator.pods_of("bad-cpu")
    simulator.run(simulator.trainer, first)
    assert not simulator.reconcile(0.1).epoch_change
    simulator.run(second)
    plan = simulator.reconcile(0.1)
    assert plan.roster is not None
    assert (plan.roster.epoch, len(plan.roster.members)) == (2, 2)


def test_the_old_roster_stays_in_force_while_newcomers_gather() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    simulator.scale("bad-cpu", 4)
    simulator.converge()
    simulator.schedule()
    simulator.run(simulator.pods_of("bad-cpu")[2])
    plan = simulator.reconcile()
    assert plan.roster is not None
    assert plan.roster.epoch == 1


def test_a_rollout_that_lost_its_address_is_another_member() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    simulator.change(simulator.pods_of("bad-cpu")[0], ip="10.9.9.9")
    plan = simulator.reconcile()
    assert plan.epoch_change
    assert plan.roster is not None
    assert "10.9.9.9" in {member.address for member in plan.roster.members}


def test_the_history_is_bounded() -> None:
    simulator = JobSimulator({"spec.membership.settleSeconds": 0})
    simulator.to_running()
    pod = simulator.pods_of("bad-cpu")[0]
    for _ in range(15):
        simulator.change(pod, running=False)
        simulator.reconcile()
        simulator.change(pod, running=True)
        simulator.reconcile()
    group = simulator.status["syncGroups"][0]
    assert simulator.status["epoch"] == 31
    assert len(group["history"]) == 20
    assert group["history"][-1]["epoch"] == 31
