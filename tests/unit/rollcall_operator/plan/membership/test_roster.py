"""Who is called, and when: losses at once, joins gathered, epochs that never repeat."""

from dataclasses import replace

import pytest

from rollcall_operator.plan.model import Memory
from rollcall_protocol.wire.roster import EpochCause
from tests.unit.rollcall_operator.plan.simulator import Stage


def started(changes: dict[str, object] | None = None) -> Stage:
    """A job whose pods are there and do not run yet."""
    stage = Stage(changes)
    stage.converge()
    stage.schedule()
    return stage


def test_no_roster_without_a_coordinator() -> None:
    stage = started()
    stage.run(*stage.pods_of("bad-cpu"))
    assert stage.reconcile(60).roster is None


def test_no_roster_while_there_is_nobody_to_call() -> None:
    stage = started()
    stage.run(stage.trainer)
    assert stage.reconcile(60).roster is None


def test_all_that_are_wanted_are_called_at_once() -> None:
    stage = started()
    stage.run()
    plan = stage.reconcile(0.1)
    assert plan.epoch_change
    assert plan.roster is not None
    assert (plan.roster.epoch, plan.roster.cause) == (1, EpochCause.JOB_STARTED)
    assert plan.roster.coordinator_uid == stage.trainer.uid
    assert len(plan.roster.members) == 2
    assert plan.job_status is not None
    assert plan.job_status["syncGroups"][0]["rosterDigest"] == plan.roster.digest


def test_members_belong_to_the_sync_group_of_their_pool() -> None:
    stage = started(
        {"spec.weightSync.groups": [{"name": "npu"}], "spec.rollouts[0].syncGroup": "npu"}
    )
    stage.run()
    roster = stage.reconcile(0.1).roster
    assert roster is not None
    assert {member.group for member in roster.members} == {"npu"}


def test_a_laggard_is_waited_for_no_longer_than_the_settle_time() -> None:
    stage = started()
    stage.run(stage.trainer, stage.pods_of("bad-cpu")[0])
    plan = stage.reconcile()
    assert plan.roster is None
    assert plan.requeue_after == pytest.approx(1.0)
    assert stage.reconcile(0.5).roster is None
    assert stage.reconcile(0.5).epoch_change


def test_each_newcomer_starts_the_settle_time_again_up_to_a_bound() -> None:
    stage = started({"spec.rollouts[0].replicas": 40})
    stage.run(stage.trainer)
    opened_after = None
    for count, pod in enumerate(stage.pods_of("bad-cpu")):
        stage.run(pod)
        if stage.reconcile(0.9 if count else 0).epoch_change:
            opened_after = 0.9 * count
            break
    assert opened_after == pytest.approx(10, abs=1)


def test_without_a_settle_time_every_newcomer_is_called_at_once() -> None:
    stage = started({"spec.membership.settleSeconds": 0})
    stage.run(stage.trainer, stage.pods_of("bad-cpu")[0])
    assert stage.reconcile().epoch_change


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"terminating": True}, "being deleted"),
        ({"running": False, "exit_code": 137, "exit_message": "OOMKilled"}, "exit code 137"),
        ({"phase": "Failed", "running": False}, "Failed"),
    ],
)
def test_a_loss_counts_at_once_and_is_explained(facts: dict[str, object], why: str) -> None:
    stage = Stage()
    stage.to_running()
    stage.change(stage.pods_of("bad-cpu")[0], **facts)
    plan = stage.reconcile()
    assert plan.epoch_change
    assert plan.roster is not None
    assert plan.roster.cause is EpochCause.MEMBER_LOST
    assert len(plan.roster.members) == 1
    assert why in stage.status["syncGroups"][0]["history"][-1]["message"]


def test_an_epoch_is_opened_exactly_once() -> None:
    stage = Stage()
    stage.to_running()
    stage.change(stage.pods_of("bad-cpu")[0], terminating=True)
    assert [stage.reconcile().epoch_change for _ in range(4)] == [True, False, False, False]
    assert stage.status["epoch"] == 2


def test_a_lost_status_write_opens_the_same_epoch_again() -> None:
    stage = Stage()
    stage.to_running()
    before, memory = stage.observed().job, stage.memory
    stage.change(stage.pods_of("bad-cpu")[0], terminating=True)
    first = stage.reconcile()
    stage.job, stage.memory = before, memory  # the compare-and-swap failed
    again = stage.reconcile()
    assert first.roster == again.roster


def test_an_operator_that_restarts_hands_out_the_same_epoch_again() -> None:
    stage = Stage()
    stage.to_running()
    stage.memory, stage.snapshot = Memory(), None
    plan = stage.reconcile(1)
    assert plan.writes_nothing
    assert plan.roster is not None
    assert plan.roster.epoch == 1
    assert plan.roster.digest == stage.status["syncGroups"][0]["rosterDigest"]


def test_an_operator_that_restarts_into_a_change_opens_an_epoch_at_once() -> None:
    stage = Stage()
    stage.to_running()
    stage.scale("bad-cpu", 3)
    stage.converge()
    stage.schedule()
    stage.run()
    stage.memory, stage.snapshot = Memory(), None
    plan = stage.reconcile()
    assert plan.roster is not None
    assert (plan.roster.epoch, plan.roster.cause) == (2, EpochCause.MEMBERS_JOINED)


def test_a_roster_in_memory_that_status_does_not_know_counts_for_nothing() -> None:
    stage = Stage()
    stage.to_running()
    assert stage.memory.roster is not None
    stage.memory = replace(stage.memory, roster=replace(stage.memory.roster, epoch=9))
    stage.change(stage.pods_of("bad-cpu")[0], terminating=True)
    plan = stage.reconcile()
    assert plan.roster is not None
    assert plan.roster.epoch == 2


def test_a_restart_of_the_coordinators_container_changes_nothing() -> None:
    stage = Stage()
    stage.to_running()
    stage.change(stage.trainer, running=False, ready=False, exit_code=1, restarts=1)
    plan = stage.reconcile(1)
    assert not plan.epoch_change
    assert plan.roster is not None
    assert plan.roster.epoch == 1


def test_another_coordinator_pod_is_a_new_epoch_with_all_members() -> None:
    stage = Stage()
    stage.to_running()
    del stage.pods[stage.trainer.uid]
    assert stage.reconcile(1).roster is None
    stage.schedule()
    stage.run(stage.trainer)
    plan = stage.reconcile(1)
    assert plan.roster is not None
    assert plan.roster.cause is EpochCause.COORDINATOR_REPLACED
    assert plan.roster.coordinator_uid == stage.trainer.uid
    assert len(plan.roster.members) == 2


def test_after_a_pause_of_all_pods_the_members_gather_anew() -> None:
    stage = Stage()
    stage.to_running()
    stage.pods.clear()
    stage.reconcile(1)
    stage.schedule()
    first, second = stage.pods_of("bad-cpu")
    stage.run(stage.trainer, first)
    assert not stage.reconcile(0.1).epoch_change
    stage.run(second)
    plan = stage.reconcile(0.1)
    assert plan.roster is not None
    assert (plan.roster.epoch, len(plan.roster.members)) == (2, 2)


def test_the_old_roster_stays_in_force_while_newcomers_gather() -> None:
    stage = Stage()
    stage.to_running()
    stage.scale("bad-cpu", 4)
    stage.converge()
    stage.schedule()
    stage.run(stage.pods_of("bad-cpu")[2])
    plan = stage.reconcile()
    assert plan.roster is not None
    assert plan.roster.epoch == 1


def test_a_rollout_that_lost_its_address_is_another_member() -> None:
    stage = Stage()
    stage.to_running()
    stage.change(stage.pods_of("bad-cpu")[0], ip="10.9.9.9")
    plan = stage.reconcile()
    assert plan.epoch_change
    assert plan.roster is not None
    assert "10.9.9.9" in {member.address for member in plan.roster.members}


def test_the_history_is_bounded() -> None:
    stage = Stage({"spec.membership.settleSeconds": 0})
    stage.to_running()
    pod = stage.pods_of("bad-cpu")[0]
    for _ in range(15):
        stage.change(pod, running=False)
        stage.reconcile()
        stage.change(pod, running=True)
        stage.reconcile()
    group = stage.status["syncGroups"][0]
    assert stage.status["epoch"] == 31
    assert len(group["history"]) == 20
    assert group["history"][-1]["epoch"] == 31
