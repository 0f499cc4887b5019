"""How a job ends, and what becomes of it then."""

import pytest

from rollcall_protocol.wire.job_snapshot import TrainingResult
from tests.unit.rollcall_operator.plan.simulator import JOB, Stage


def test_a_job_that_did_its_steps_has_succeeded_and_frees_its_pods() -> None:
    stage = Stage()
    stage.to_running()
    stage.report(step=200, reward=0.991, finished=TrainingResult(step=200))
    stage.converge(1)
    assert stage.status["phase"] == "Succeeded"
    assert stage.condition("Succeeded")["message"] == "trained 200 steps"
    assert stage.status["progress"]["rolloutReward"] == "0.991"
    assert stage.children["StatefulSet/bad-trainer"]["spec"]["replicas"] == 0
    assert stage.children["Deployment/bad-cpu"]["spec"]["replicas"] == 0
    assert stage.reconcile().roster is None
    for kind in ("TrainerReady", "RolloutsReady", "WeightsInSync", "Running"):
        assert (stage.condition(kind)["status"], stage.condition(kind)["reason"]) == (
            "False", "Finished",
        )  # fmt: skip


def test_pods_of_a_finished_job_may_stay_for_a_look() -> None:
    stage = Stage({"spec.cleanPodPolicy": "None"})
    stage.to_running()
    stage.report(step=200, finished=TrainingResult(step=200))
    stage.converge(1)
    assert stage.status["phase"] == "Succeeded"
    assert stage.children["StatefulSet/bad-trainer"]["spec"]["replicas"] == 1
    stage.change(stage.pods_of("bad-cpu")[0], terminating=True)
    plan = stage.converge(60)
    assert not plan.epoch_change, "nobody calls the roll of a finished job"


def test_nothing_is_made_anew_for_a_finished_job() -> None:
    stage = Stage({"spec.cleanPodPolicy": "None"})
    stage.to_running()
    stage.report(finished=TrainingResult(step=200))
    stage.converge(1)
    stage.children.clear()
    stage.token = False
    assert stage.reconcile(60).writes_nothing


def test_a_finished_job_stays_finished() -> None:
    stage = Stage()
    stage.to_running()
    stage.report(finished=TrainingResult(step=7, error="loss is not a number"))
    stage.converge(1)
    assert stage.condition("Failed")["reason"] == "TrainingFailed"
    stage.report(step=200, finished=TrainingResult(step=200))
    stage.converge(60)
    assert stage.status["phase"] == "Failed"
    assert stage.condition("Failed")["message"] == "at step 7: loss is not a number"


def test_a_finished_job_is_deleted_after_its_time_to_live() -> None:
    stage = Stage({"spec.ttlSecondsAfterFinished": 30})
    stage.to_running()
    stage.report(finished=TrainingResult(step=200))
    stage.converge()
    plan = stage.reconcile(12)
    assert plan.requeue_after == pytest.approx(18, abs=1.0)
    (gone,) = stage.reconcile(20).deletes
    assert (gone.kind, gone.name, gone.uid) == ("RLJob", JOB, "job-uid")


def test_the_deadline_does_not_count_time_suspended() -> None:
    stage = Stage({"spec.activeDeadlineSeconds": 100, "spec.suspend": True})
    stage.converge()
    stage.edit({"spec.suspend": False})
    stage.converge(500)
    assert stage.status["phase"] == "Starting"
    plan = stage.reconcile(60)
    assert plan.requeue_after == pytest.approx(40, abs=1)
    stage.converge(41)
    assert stage.condition("Failed")["reason"] == "DeadlineExceeded"
