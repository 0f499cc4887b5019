"""A job's life, planned: start, elasticity, failure, suspension, end."""

import pytest

from rollcall_operator.api.rolloutpool import RolloutPoolSpec
from rollcall_operator.api.status import RLJobStatus, RolloutPoolStatus
from rollcall_operator.plan.job import make_plan
from rollcall_operator.plan.model import Observed
from rollcall_protocol.wire.job_snapshot import MemberState
from tests.unit.rollcall_operator.plan.simulator import JOB, NAMESPACE, Stage, lent_pool


def test_the_first_plan_has_everything_but_deployments() -> None:
    stage = Stage()
    plan = stage.reconcile()
    assert plan.token is not None
    assert [body["kind"] for body in plan.applies] == ["Service", "StatefulSet", "RolloutPool"]
    assert stage.status["phase"] == "Starting"


def test_deployments_follow_when_their_pool_has_a_uid() -> None:
    stage = Stage()
    stage.reconcile()
    (deployment,) = stage.reconcile().applies
    assert deployment["kind"] == "Deployment"
    assert deployment["metadata"]["ownerReferences"][0]["kind"] == "RolloutPool"
    assert deployment["metadata"]["ownerReferences"][0]["uid"] == "uid-of-RolloutPool-bad-cpu"


def test_from_apply_to_running_takes_at_most_twelve_writes() -> None:
    stage = Stage()
    stage.reconcile()
    stage.reconcile(0.1)
    stage.schedule()
    stage.reconcile(0.1)
    for pod in list(stage.pods.values()):  # they come up one by one
        stage.run(pod)
        stage.reconcile(0.2)
    stage.report(states=dict.fromkeys(stage.pods, MemberState.CATCHING_UP))
    stage.reconcile(0.3)
    stage.report()
    for _ in range(5):
        stage.reconcile(0.3)
    assert stage.status["phase"] == "Running"
    assert sum(stage.writes.values()) <= 12, stage.writes
    assert stage.writes["job status"] <= 3


def test_a_slow_start_does_not_cost_more_writes() -> None:
    stage = Stage()
    stage.converge()
    stage.schedule()
    stage.reconcile(1)
    stage.run(*stage.pods_of("bad-cpu"))
    for _ in range(10):
        stage.reconcile(2.0)
    stage.run()
    stage.reconcile(0.1)
    stage.report()
    for _ in range(5):
        stage.reconcile(0.3)
    assert stage.status["phase"] == "Running"
    assert sum(stage.writes.values()) <= 12, stage.writes


@pytest.mark.parametrize("seconds", [0.0, 5.0, 60.0, 3600.0])
def test_with_nothing_to_do_nothing_is_written(seconds: float) -> None:
    stage = Stage()
    stage.pools["lent"] = lent_pool()
    stage.to_running()
    stage.converge(60.0)
    assert stage.reconcile(seconds).writes_nothing


def test_what_is_written_fits_the_status_schemas() -> None:
    stage = Stage()
    stage.pools["lent"] = lent_pool()
    stage.to_running()
    stage.report(step=3, reward=0.25)
    stage.converge(20.0)
    RLJobStatus.model_validate(stage.status, strict=False)
    for pool in stage.pools.values():
        RolloutPoolStatus.model_validate(pool["status"], strict=False)
        RolloutPoolSpec.model_validate(pool["spec"])


def test_planning_is_pure() -> None:
    stage = Stage()
    stage.to_running()
    observed = stage.observed()
    assert make_plan(observed) == make_plan(observed)


def test_a_pod_kill_makes_an_epoch_without_it_and_one_with_its_replacement() -> None:
    stage = Stage()
    stage.to_running()
    victim = stage.pods_of("bad-cpu")[0]
    stage.change(victim, terminating=True)
    assert stage.reconcile(0.1).epoch_change
    del stage.pods[victim.uid]
    stage.schedule()
    assert not stage.reconcile(0.1).epoch_change
    stage.run()
    assert stage.converge(0.1).epoch_change
    causes = [record["cause"] for record in stage.status["syncGroups"][0]["history"]]
    assert causes == ["JobStarted", "MemberLost", "MembersJoined"]
    assert stage.status["phase"] == "Running"


def test_scaling_up_is_one_epoch_and_the_job_goes_on() -> None:
    stage = Stage()
    stage.to_running()
    stage.scale("bad-cpu", 4)
    stage.converge(0.1)
    assert stage.children["Deployment/bad-cpu"]["spec"]["replicas"] == 4
    stage.schedule()
    first, second = stage.pods_of("bad-cpu")[2:]
    stage.run(first)
    stage.reconcile(0.1)
    stage.run(second)
    stage.reconcile(0.5)
    assert stage.status["epoch"] == 2
    stage.report()
    stage.converge(0.2)
    stage.converge(1.0)
    assert stage.status["epoch"] == 2
    assert stage.status["rollouts"] == "4/4"
    assert stage.status["phase"] == "Running"
    assert stage.status["trainer"]["totalRestarts"] == 0


def test_scaling_down_says_so() -> None:
    stage = Stage()
    stage.to_running()
    stage.scale("bad-cpu", 1)
    stage.converge(0.1)
    stage.change(stage.pods_of("bad-cpu")[1], terminating=True)
    stage.converge(0.1)
    assert stage.status["syncGroups"][0]["history"][-1]["cause"] == "ScaledDown"


def test_a_lent_pool_joins_a_running_job_and_is_taken_back() -> None:
    stage = Stage()
    stage.to_running()
    stage.pools["lent"] = lent_pool()
    stage.converge(0.1)
    stage.schedule()
    stage.run()
    stage.converge(0.1)
    assert stage.roster is not None
    assert {member.pool for member in stage.roster.members} == {"bad-cpu", "lent"}
    stage.report()
    stage.converge(0.2)
    stage.converge(1.0)
    assert stage.pool_condition("lent", "Ready")["status"] == "True"
    del stage.pools["lent"]
    stage.converge(0.1)
    assert {member.pool for member in stage.roster.members} == {"bad-cpu"}
    assert stage.status["syncGroups"][0]["history"][-1]["cause"] == "ScaledDown"


def test_a_rollout_entry_taken_out_of_the_job_takes_its_pool_along() -> None:
    stage = Stage(
        {"spec.rollouts[1]": {**Stage().job["spec"]["rollouts"][0], "name": "more"}}  # type: ignore[index]
    )
    stage.to_running()
    assert set(stage.pools) == {"bad-cpu", "bad-more"}
    assert stage.job is not None
    stage.job["spec"]["rollouts"].pop()
    (gone,) = stage.reconcile().deletes
    assert (gone.kind, gone.name) == ("RolloutPool", "bad-more")


def test_suspending_frees_all_pods_and_resuming_brings_them_back() -> None:
    stage = Stage()
    stage.to_running()
    stage.edit({"spec.suspend": True})
    stage.converge(1)
    assert stage.status["phase"] == "Suspended"
    assert stage.children["StatefulSet/bad-trainer"]["spec"]["replicas"] == 0
    assert stage.children["Deployment/bad-cpu"]["spec"]["replicas"] == 0
    assert stage.pools["bad-cpu"]["spec"]["replicas"] == 2, "the pool keeps its number"
    assert "startTime" not in stage.status
    stage.schedule()
    assert not stage.pods
    stage.edit({"spec.suspend": False})
    stage.converge(60)
    assert stage.status["phase"] == "Starting"
    stage.snapshot = None
    stage.schedule()
    stage.run()
    stage.converge(1)
    assert stage.status["syncGroups"][0]["history"][-1]["cause"] == "CoordinatorReplaced"
    stage.report()
    stage.converge(1)
    assert (stage.status["phase"], stage.status["epoch"]) == ("Running", 2)


def test_a_wrong_job_makes_nothing_and_says_why() -> None:
    stage = Stage({"spec.trainer.template.spec.restartPolicy": "Never"})
    plan = stage.converge()
    assert not plan.applies
    assert plan.token is None
    assert stage.status["phase"] == "Pending"
    condition = stage.condition("Validated")
    assert (condition["status"], condition["reason"]) == ("False", "InvalidSpec")
    assert condition["message"].startswith("spec.trainer.template.spec.restartPolicy: must be")
    assert [note.reason for note in stage.plans[0].events] == ["InvalidSpec"]


def test_a_spec_that_does_not_fit_the_types_is_said_too() -> None:
    stage = Stage()
    assert stage.job is not None
    stage.job["spec"]["algorithm"]["maxSteps"] = "many"
    stage.converge()
    message = stage.condition("Validated")["message"]
    assert message == "spec.algorithm.maxSteps: input should be a valid integer, not 'many'"


def test_a_wrong_edit_leaves_what_runs_alone() -> None:
    stage = Stage()
    stage.to_running()
    stage.edit({"spec.rollouts[0].template.spec.restartPolicy": "Never"})
    plan = stage.converge(1)
    assert not plan.applies
    assert stage.status["phase"] == "Running"
    assert stage.condition("Validated")["status"] == "False"
    stage.change(stage.pods_of("bad-cpu")[0], terminating=True)
    assert stage.reconcile(1).epoch_change, "epochs go on"


def test_a_pool_without_a_job_waits_for_it() -> None:
    observed = Observed(namespace=NAMESPACE, name=JOB, now=1e9, pools=(lent_pool(),))
    plan = make_plan(observed)
    assert not plan.applies
    (missing, ready) = plan.pool_statuses["lent"]["conditions"]
    assert (missing["type"], missing["status"], missing["reason"]) == (
        "JobFound", "False", "JobNotFound",
    )  # fmt: skip
    assert "spec.jobRef.name: no RLJob 'bad'" in missing["message"]
    assert ready["status"] == "False"


def test_a_pool_of_another_job_is_a_mistake_of_the_callers() -> None:
    stage = Stage()
    stage.pools["lent"] = lent_pool({"spec.jobRef.name": "other"})
    with pytest.raises(ValueError, match="RolloutPool lent serves another job"):
        stage.reconcile()


def test_a_pool_that_lost_its_job_is_held_at_zero() -> None:
    stage = Stage()
    stage.pools["lent"] = lent_pool()
    stage.to_running()
    stage.job = None
    del stage.pools["bad-cpu"], stage.children["Deployment/bad-cpu"]
    (held,) = stage.reconcile(1).applies
    assert held["metadata"]["name"] == "lent"
    assert held["spec"]["replicas"] == 0
    assert stage.reconcile(60).writes_nothing


def test_leftovers_of_an_earlier_job_of_the_same_name_are_left_to_go() -> None:
    stage = Stage()
    stage.converge()
    assert stage.job is not None
    stage.job["metadata"]["uid"] = "another-job"
    stage.job.pop("status")
    plan = stage.reconcile()
    assert not plan.applies
    assert plan.requeue_after is not None


def test_pods_of_an_earlier_job_are_not_members() -> None:
    stage = Stage()
    stage.to_running()
    for pod in list(stage.pods.values()):
        stage.change(pod, job_uid="earlier")
    plan = stage.reconcile(1)
    assert plan.roster is None


def test_a_deleted_job_is_left_to_the_garbage_collector() -> None:
    stage = Stage()
    stage.to_running()
    assert stage.job is not None
    stage.job["metadata"]["deletionTimestamp"] = "2026-11-20T00:00:00Z"
    assert stage.reconcile(1).writes_nothing
