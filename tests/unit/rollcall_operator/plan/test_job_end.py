"""How a job ends, and what becomes of it then."""

import pytest

from rollcall_protocol.wire.job_snapshot import TrainingResult
from tests.apiserver.bad_manifests.manifests import OWN_REFERENCE
from tests.unit.rollcall_operator.plan.simulator import JOB, JobSimulator, writes_anything


def test_a_job_that_did_its_steps_has_succeeded_and_frees_its_pods() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    simulator.report(step=200, reward=0.991, finished=TrainingResult(step=200))
    simulator.converge(1)
    assert simulator.status["phase"] == "Succeeded"
    assert simulator.condition("Succeeded")["message"] == "training completed after 200 steps"
    assert simulator.status["progress"]["rolloutReward"] == "0.991"
    assert simulator.children["StatefulSet/bad-trainer"]["spec"]["replicas"] == 0
    assert simulator.children["Deployment/bad-cpu"]["spec"]["replicas"] == 0
    assert simulator.reconcile().roster is None
    assert simulator.status["trainer"]["replicas"] == 0


def test_every_condition_of_pods_and_training_says_that_the_job_has_finished() -> None:
    simulator = JobSimulator(OWN_REFERENCE)
    simulator.to_running()
    simulator.report(finished=TrainingResult(step=200))
    simulator.converge(1)
    reasons = {c["type"]: (c["status"], c["reason"]) for c in simulator.status["conditions"]}
    of_pods = ("TrainerReady", "TrainerUpToDate", "ReferenceReady", "RolloutsReady")
    for kind in (*of_pods, "CoordinatorConnected", "WeightsInSync", "Running"):
        assert reasons[kind] == ("False", "Finished"), kind
    assert simulator.pool_condition("bad-cpu", "Ready")["reason"] == "Finished"


def test_pods_of_a_finished_job_may_stay_for_a_look() -> None:
    simulator = JobSimulator({"spec.cleanPodPolicy": "None"})
    simulator.to_running()
    simulator.report(step=200, finished=TrainingResult(step=200))
    simulator.converge(1)
    assert simulator.status["phase"] == "Succeeded"
    assert simulator.children["StatefulSet/bad-trainer"]["spec"]["replicas"] == 1
    assert simulator.condition("TrainerReady")["status"] == "True"
    assert simulator.pool_condition("bad-cpu", "Ready")["status"] == "True"
    simulator.change(simulator.pods_of("bad-cpu")[0], terminating=True)
    plan = simulator.converge(60)
    assert not plan.epoch_change, "a finished job gets no epoch"


def test_kept_pods_are_left_as_they_are_and_the_conditions_say_what_is_true() -> None:
    simulator = JobSimulator({"spec.cleanPodPolicy": "None"})
    simulator.to_running()
    simulator.report(step=200, finished=TrainingResult(step=200))
    simulator.converge(1)
    simulator.edit({"spec.rollouts[0].template.spec.containers[0].image": "rollcall/worker:2"})
    simulator.change(simulator.pods_of("bad-cpu")[0], running=False)
    before = len(simulator.plans)
    simulator.converge(60)
    applied = {child["kind"] for plan in simulator.plans[before:] for child in plan.applies}
    assert applied <= {"RolloutPool"}, "what makes pods stays"
    rollouts = simulator.condition("RolloutsReady")
    assert (rollouts["status"], rollouts["message"][:6]) == ("False", "1 of 2")
    assert simulator.status["rollouts"] == "1/2", "as the column has it"
    for kind in ("WeightsInSync", "CoordinatorConnected", "TrainerUpToDate"):
        condition = simulator.condition(kind)
        assert (condition["status"], condition["reason"]) == ("Unknown", "Finished"), kind
    simulator.edit({"spec.cleanPodPolicy": "All"})
    simulator.converge(1)
    assert simulator.children["Deployment/bad-cpu"]["spec"]["replicas"] == 0


def test_no_child_is_recreated_for_a_finished_job() -> None:
    simulator = JobSimulator({"spec.cleanPodPolicy": "None"})
    simulator.to_running()
    simulator.report(finished=TrainingResult(step=200))
    simulator.converge(1)
    simulator.children.clear()
    assert not writes_anything(simulator.reconcile(60))


def test_a_finished_job_stays_finished() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    simulator.report(finished=TrainingResult(step=7, error="loss is not a number"))
    simulator.converge(1)
    assert simulator.condition("Failed")["reason"] == "TrainingFailed"
    simulator.report(step=200, finished=TrainingResult(step=200))
    simulator.converge(60)
    assert simulator.status["phase"] == "Failed"
    message = simulator.condition("Failed")["message"]
    assert message.startswith("training failed at step 7: loss is not a number. Fix the cause")


def test_the_time_of_its_end_stays() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    simulator.report(finished=TrainingResult(step=200))
    simulator.converge(1)
    ended = simulator.status["completionTime"]
    simulator.edit({"spec.ttlSecondsAfterFinished": 1000})
    simulator.converge(60)
    assert simulator.status["completionTime"] == ended


def test_a_finished_job_is_deleted_after_its_time_to_live() -> None:
    simulator = JobSimulator({"spec.ttlSecondsAfterFinished": 30})
    simulator.to_running()
    simulator.report(finished=TrainingResult(step=200))
    simulator.converge()
    plan = simulator.reconcile(12)
    assert plan.requeue_after == pytest.approx(18, abs=1.0)
    (gone,) = simulator.reconcile(20).deletes
    assert (gone.kind, gone.name, gone.uid) == ("RLJob", JOB, "job-uid")


def test_a_job_whose_time_to_live_is_0_is_deleted_at_once() -> None:
    simulator = JobSimulator({"spec.ttlSecondsAfterFinished": 0})
    simulator.to_running()
    simulator.report(finished=TrainingResult(step=200))
    assert [gone.kind for gone in simulator.reconcile().deletes] == ["RLJob"]


def test_the_deadline_does_not_count_time_suspended() -> None:
    simulator = JobSimulator({"spec.activeDeadlineSeconds": 100, "spec.suspend": True})
    simulator.converge()
    simulator.edit({"spec.suspend": False})
    simulator.converge(500)
    assert simulator.status["phase"] == "Starting"
    simulator.schedule()
    plan = simulator.reconcile(60)
    assert plan.requeue_after == pytest.approx(40, abs=1)
    simulator.converge(41)
    assert simulator.condition("Failed")["reason"] == "DeadlineExceeded"
