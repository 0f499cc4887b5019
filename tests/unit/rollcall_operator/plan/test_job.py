"""A job's life, planned: start, elasticity, failure, suspension, end."""

import pytest

from rollcall_operator.api.rolloutpool import RolloutPoolSpec
from rollcall_operator.api.status import RLJobStatus, RolloutPoolStatus
from rollcall_operator.plan.job import make_plan
from rollcall_operator.plan.model import ObservedJob
from rollcall_protocol.wire.job_snapshot import MemberState
from tests.unit.rollcall_operator.plan.simulator import (
    JOB,
    NAMESPACE,
    JobSimulator,
    lent_pool,
    writes_anything,
)


def test_the_first_plan_has_everything_but_deployments() -> None:
    simulator = JobSimulator()
    plan = simulator.reconcile()
    policies = ["NetworkPolicy", "NetworkPolicy"]  # before the pods that they protect
    kinds = [*policies, "Service", "ConfigMap", "StatefulSet", "RolloutPool"]
    assert [body["kind"] for body in plan.applies] == kinds
    assert simulator.status["phase"] == "Starting"


def test_deployments_follow_when_their_pool_has_a_uid() -> None:
    simulator = JobSimulator()
    simulator.reconcile()
    (deployment,) = simulator.reconcile().applies
    assert deployment["kind"] == "Deployment"
    assert deployment["metadata"]["ownerReferences"][0]["kind"] == "RolloutPool"
    assert deployment["metadata"]["ownerReferences"][0]["uid"] == "uid-of-RolloutPool-bad-cpu"


def test_from_apply_to_running_takes_at_most_fourteen_writes() -> None:
    simulator = JobSimulator()
    simulator.reconcile()
    simulator.reconcile(0.1)
    simulator.schedule()
    simulator.reconcile(0.1)
    for pod in list(simulator.pods.values()):  # they come up one by one
        simulator.run(pod)
        simulator.reconcile(0.2)
    simulator.report(states=dict.fromkeys(simulator.pods, MemberState.CATCHING_UP))
    simulator.reconcile(0.3)
    simulator.report()
    for _ in range(5):
        simulator.reconcile(0.3)
    assert simulator.status["phase"] == "Running"
    assert sum(simulator.writes.values()) <= 14, simulator.writes
    assert simulator.writes["job status"] <= 3


def test_a_slow_start_does_not_cost_more_writes() -> None:
    simulator = JobSimulator()
    simulator.converge()
    simulator.schedule()
    simulator.reconcile(1)
    simulator.run(*simulator.pods_of("bad-cpu"))
    for _ in range(10):
        simulator.reconcile(2.0)
    simulator.run()
    simulator.reconcile(0.1)
    simulator.report()
    for _ in range(5):
        simulator.reconcile(0.3)
    assert simulator.status["phase"] == "Running"
    assert sum(simulator.writes.values()) <= 14, simulator.writes


@pytest.mark.parametrize("seconds", [0.0, 5.0, 60.0, 3600.0])
def test_with_nothing_to_do_nothing_is_written(seconds: float) -> None:
    simulator = JobSimulator()
    simulator.pools["lent"] = lent_pool()
    simulator.to_running()
    simulator.converge(60.0)
    assert not writes_anything(simulator.reconcile(seconds))


def test_children_that_are_settled_are_not_made_again_until_something_of_them_changes() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    simulator.converge(60.0)
    settled = simulator.memory.settled
    assert settled is not None
    simulator.report(step=9)
    simulator.reconcile(20.0)
    assert simulator.memory.settled == settled
    simulator.edit({"spec.rollouts[0].replicas": 3})
    assert simulator.reconcile(1.0).applies
    simulator.converge(60.0)
    assert simulator.memory.settled != settled


def test_what_is_written_fits_the_status_schemas() -> None:
    simulator = JobSimulator()
    simulator.pools["lent"] = lent_pool()
    simulator.to_running()
    simulator.report(step=3, reward=0.25)
    simulator.converge(20.0)
    RLJobStatus.model_validate(simulator.status, strict=False)
    for pool in simulator.pools.values():
        RolloutPoolStatus.model_validate(pool["status"], strict=False)
        RolloutPoolSpec.model_validate(pool["spec"])


def test_planning_is_pure() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    observed = simulator.observed()
    assert make_plan(observed) == make_plan(observed)


def test_a_pod_kill_makes_an_epoch_without_it_and_one_with_its_replacement() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    victim = simulator.pods_of("bad-cpu")[0]
    simulator.change(victim, terminating=True)
    assert simulator.reconcile(0.1).epoch_change
    del simulator.pods[victim.uid]
    simulator.schedule()
    assert not simulator.reconcile(0.1).epoch_change
    simulator.run()
    assert simulator.converge(0.1).epoch_change
    causes = [record["cause"] for record in simulator.status["syncGroups"][0]["history"]]
    assert causes == ["JobStarted", "MemberLost", "MembersJoined"]
    assert simulator.status["phase"] == "Running"


def test_scaling_up_is_one_epoch_and_the_job_goes_on() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    simulator.scale("bad-cpu", 4)
    simulator.converge(0.1)
    assert simulator.children["Deployment/bad-cpu"]["spec"]["replicas"] == 4
    simulator.schedule()
    first, second = simulator.pods_of("bad-cpu")[2:]
    simulator.run(first)
    simulator.reconcile(0.1)
    simulator.run(second)
    simulator.reconcile(0.5)
    assert simulator.status["epoch"] == 2
    simulator.report()
    simulator.converge(0.2)
    simulator.converge(1.0)
    assert simulator.status["epoch"] == 2
    assert simulator.status["rollouts"] == "4/4"
    assert simulator.status["phase"] == "Running"
    assert simulator.status["trainer"]["totalRestarts"] == 0


def test_scaling_down_says_so() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    simulator.scale("bad-cpu", 1)
    simulator.converge(0.1)
    simulator.change(simulator.pods_of("bad-cpu")[1], terminating=True)
    simulator.converge(0.1)
    assert simulator.status["syncGroups"][0]["history"][-1]["cause"] == "ScaledDown"


def test_a_loss_of_another_pool_is_no_scaling_down() -> None:
    simulator = JobSimulator()
    simulator.pools["lent"] = lent_pool()
    simulator.to_running()
    simulator.scale("bad-cpu", 1)
    simulator.change(simulator.pods_of("lent")[0], terminating=True)
    simulator.converge(0.1)
    assert simulator.status["syncGroups"][0]["history"][-1]["cause"] == "MemberLost"


def test_a_lent_pool_joins_a_running_job_and_is_taken_back() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    simulator.pools["lent"] = lent_pool()
    simulator.converge(0.1)
    simulator.schedule()
    simulator.run()
    simulator.converge(0.1)
    assert simulator.roster is not None
    assert {member.pool for member in simulator.roster.members} == {"bad-cpu", "lent"}
    simulator.report()
    simulator.converge(0.2)
    simulator.converge(1.0)
    assert simulator.pool_condition("lent", "Ready")["status"] == "True"
    del simulator.pools["lent"]
    simulator.converge(0.1)
    assert {member.pool for member in simulator.roster.members} == {"bad-cpu"}
    assert simulator.status["syncGroups"][0]["history"][-1]["cause"] == "ScaledDown"


def test_a_rollout_entry_taken_out_of_the_job_takes_its_pool_along() -> None:
    simulator = JobSimulator(
        {"spec.rollouts[1]": {**JobSimulator().job["spec"]["rollouts"][0], "name": "more"}}  # type: ignore[index]
    )
    simulator.to_running()
    assert set(simulator.pools) == {"bad-cpu", "bad-more"}
    assert simulator.job is not None
    simulator.job["spec"]["rollouts"].pop()
    (gone,) = simulator.reconcile().deletes
    assert (gone.kind, gone.name) == ("RolloutPool", "bad-more")


def test_suspending_frees_all_pods_and_resuming_brings_them_back() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    simulator.edit({"spec.suspend": True})
    simulator.converge(1)
    assert simulator.status["phase"] == "Suspended"
    assert simulator.children["StatefulSet/bad-trainer"]["spec"]["replicas"] == 0
    assert simulator.children["Deployment/bad-cpu"]["spec"]["replicas"] == 0
    assert simulator.pools["bad-cpu"]["spec"]["replicas"] == 2, "the pool keeps its number"
    assert "startTime" not in simulator.status
    simulator.schedule()
    assert not simulator.pods
    simulator.edit({"spec.suspend": False})
    simulator.converge(60)
    assert simulator.status["phase"] == "Starting"
    simulator.snapshot = None
    simulator.schedule()
    simulator.run()
    simulator.converge(1)
    assert simulator.status["syncGroups"][0]["history"][-1]["cause"] == "CoordinatorReplaced"
    simulator.report()
    simulator.converge(1)
    assert (simulator.status["phase"], simulator.status["epoch"]) == ("Running", 2)


def test_a_wrong_job_makes_nothing_and_says_why() -> None:
    simulator = JobSimulator({"spec.trainer.template.spec.restartPolicy": "Never"})
    plan = simulator.converge()
    assert not plan.applies
    assert simulator.status["phase"] == "Pending"
    condition = simulator.condition("Validated")
    assert (condition["status"], condition["reason"]) == ("False", "InvalidSpec")
    assert condition["message"].startswith("spec.trainer.template.spec.restartPolicy: must be")
    assert [event.reason for event in simulator.plans[0].events] == ["InvalidSpec"]


def test_a_spec_that_does_not_fit_the_types_is_reported_too() -> None:
    simulator = JobSimulator()
    assert simulator.job is not None
    simulator.job["spec"]["algorithm"]["maxSteps"] = "many"
    simulator.converge()
    message = simulator.condition("Validated")["message"]
    assert message == "spec.algorithm.maxSteps: must be an integer, not 'many'"


def test_a_wrong_edit_leaves_what_runs_alone() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    simulator.edit({"spec.rollouts[0].template.spec.restartPolicy": "Never"})
    plan = simulator.converge(1)
    assert not plan.applies
    assert simulator.status["phase"] == "Running"
    assert simulator.condition("Validated")["status"] == "False"
    simulator.change(simulator.pods_of("bad-cpu")[0], terminating=True)
    assert simulator.reconcile(1).epoch_change, "epochs go on"


def test_a_pool_without_a_job_waits_for_it() -> None:
    observed = ObservedJob(namespace=NAMESPACE, name=JOB, now=1e9, pools=(lent_pool(),))
    plan = make_plan(observed)
    assert not plan.applies
    (missing, ready) = plan.pool_statuses["lent"]["conditions"]
    assert (missing["type"], missing["status"], missing["reason"]) == (
        "JobFound",
        "False",
        "JobNotFound",
    )
    assert "spec.jobRef.name: RLJob 'bad' does not exist" in missing["message"]
    assert ready["status"] == "False"


def test_a_pool_without_a_job_is_reported_once() -> None:
    pool = lent_pool()
    observed = ObservedJob(namespace=NAMESPACE, name=JOB, now=1e9, pools=(pool,))
    plan = make_plan(observed)
    assert [event.reason for event in plan.events] == ["JobNotFound"]
    pool["status"] = plan.pool_statuses["lent"]
    pool["metadata"]["generation"] += 1
    again = make_plan(observed)
    assert again.pool_statuses["lent"]["observedGeneration"] == 2
    assert again.events == ()


def test_a_pool_of_another_job_is_a_mistake_of_the_callers() -> None:
    simulator = JobSimulator()
    simulator.pools["lent"] = lent_pool({"spec.jobRef.name": "other"})
    with pytest.raises(ValueError, match="RolloutPool lent serves another job"):
        simulator.reconcile()


def test_a_pool_that_lost_its_job_is_held_at_zero() -> None:
    simulator = JobSimulator()
    simulator.pools["lent"] = lent_pool()
    simulator.to_running()
    simulator.job = None
    del simulator.pools["bad-cpu"], simulator.children["Deployment/bad-cpu"]
    (held,) = simulator.reconcile(1).applies
    assert held["metadata"]["name"] == "lent"
    assert held["spec"]["replicas"] == 0
    assert not writes_anything(simulator.reconcile(60))


def test_leftovers_of_an_earlier_job_of_the_same_name_are_left_to_go() -> None:
    simulator = JobSimulator()
    simulator.converge()
    assert simulator.job is not None
    simulator.job["metadata"]["uid"] = "another-job"
    simulator.job.pop("status")
    plan = simulator.reconcile()
    assert not plan.applies
    assert plan.requeue_after is not None


def test_pods_of_an_earlier_job_are_not_members() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    for pod in list(simulator.pods.values()):
        simulator.change(pod, job_uid="earlier")
    plan = simulator.reconcile(1)
    assert plan.roster is None


def test_a_deleted_job_is_left_to_the_garbage_collector() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    assert simulator.job is not None
    simulator.job["metadata"]["deletionTimestamp"] = "2026-11-20T00:00:00Z"
    assert not writes_anything(simulator.reconcile(1))
