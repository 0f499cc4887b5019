"""Children that the API server refuses, told in terms of the job."""

import pytest

from rollcall_operator.plan.diff import digest
from rollcall_operator.plan.model import Refusal
from tests.unit.rollcall_operator.plan.simulator import Stage, lent_pool


def refuse(stage: Stage, key: str, message: str) -> None:
    """The next plan's child `key` is refused by the API server."""
    plan = stage.plans[-1]
    body = next(b for b in plan.applies if f"{b['kind']}/{b['metadata']['name']}" == key)
    stage.refusals[key] = Refusal(digest(body), message)
    stage.children.pop(key, None)


INVALID = '{} is invalid: spec.template.spec.containers[0].name: Invalid value: "X": lower case'
UNKNOWN = (
    "failed to create typed patch object (team/bad-trainer; apps/v1, Kind=StatefulSet): "
    '.spec.template.spec.containers[name="trainer"].imagePolicy: field not declared in schema'
)


@pytest.mark.parametrize(
    ("message", "begins"),
    [
        (
            INVALID.format('StatefulSet.apps "bad-trainer"'),
            "spec.trainer.template.spec.containers[0].name: Invalid value",
        ),
        (UNKNOWN, "spec.trainer.template.spec.containers[0].imagePolicy: field not declared"),
        ("admission webhook said no", "spec.trainer.template: admission webhook said no"),
    ],
)
def test_a_refused_trainer_is_told_by_the_jobs_field(message: str, begins: str) -> None:
    stage = Stage()
    stage.reconcile()
    refuse(stage, "StatefulSet/bad-trainer", message)
    stage.converge()
    condition = stage.condition("Validated")
    assert (condition["status"], condition["reason"]) == ("False", "InvalidSpec")
    assert condition["message"].startswith(begins)
    assert "StatefulSet/bad-trainer" in condition["message"]
    assert stage.status["phase"] == "Pending"


def test_a_refusal_is_told_at_once_even_right_after_another_write() -> None:
    stage = Stage()
    stage.to_running()
    stage.edit({"spec.rollouts[0].template.spec.containers[0].image": "other"})
    stage.reconcile(60)
    stage.reconcile(0.1)
    refuse(stage, "Deployment/bad-cpu", "no")
    stage.reconcile(0.1)
    assert stage.condition("Validated")["status"] == "False"
    assert stage.status["phase"] == "Running"


def test_a_refused_child_is_not_applied_again_until_it_changes() -> None:
    stage = Stage()
    stage.reconcile()
    refuse(stage, "StatefulSet/bad-trainer", "no")
    stage.converge()
    assert stage.reconcile(60).writes_nothing
    stage.edit({"spec.trainer.template.spec.containers[0].image": "other"})
    assert "StatefulSet" in [body["kind"] for body in stage.reconcile().applies]


def test_a_refusal_that_is_over_is_forgotten() -> None:
    stage = Stage()
    stage.reconcile()
    refuse(stage, "StatefulSet/bad-trainer", "quota exceeded")
    stage.converge()
    stage.refusals.clear()
    stage.converge()
    assert stage.condition("Validated")["status"] == "True"
    assert stage.status["phase"] == "Starting"


def test_a_refused_pool_deployment_is_told_by_job_and_pool() -> None:
    stage = Stage()
    stage.reconcile()
    stage.reconcile()
    refuse(stage, "Deployment/bad-cpu", INVALID.format('Deployment.apps "bad-cpu"'))
    stage.converge(2)
    job = stage.condition("Validated")["message"]
    assert job.startswith("spec.rollouts[0].template.spec.containers[0].name: ")
    pool = stage.pool_condition("bad-cpu", "Validated")["message"]
    assert pool.startswith("spec.template.spec.containers[0].name: ")


def test_a_refused_lent_pool_is_not_the_jobs_fault() -> None:
    stage = Stage()
    stage.pools["lent"] = lent_pool()
    stage.reconcile()
    refuse(stage, "Deployment/lent", INVALID.format('Deployment.apps "lent"'))
    stage.converge(2)
    assert stage.condition("Validated")["status"] == "True"
    assert stage.pool_condition("lent", "Validated")["status"] == "False"


def test_a_refused_pool_is_told_by_the_jobs_entry() -> None:
    stage = Stage()
    stage.reconcile()
    message = 'RolloutPool.rollcall.dev "bad-cpu" is invalid: spec.replicas: Invalid value: 5'
    stage.pools.clear()
    refuse(stage, "RolloutPool/bad-cpu", message)
    stage.converge()
    begins = "spec.rollouts[0].replicas: Invalid value: 5"
    assert stage.condition("Validated")["message"].startswith(begins)


def test_a_lower_maximum_than_there_are_rollouts_is_not_forced_upon_a_pool() -> None:
    stage = Stage()
    stage.to_running()
    stage.scale("bad-cpu", 5)
    stage.edit({"spec.rollouts[0].maxReplicas": 3})
    plan = stage.converge(2)
    assert not [body for body in plan.applies if body["kind"] == "RolloutPool"]
    message = stage.condition("Validated")["message"]
    assert message.startswith("spec.rollouts[0].maxReplicas: 3 is below the 5 replicas")


def test_somebody_elses_pool_of_the_same_name_is_left_alone() -> None:
    stage = Stage()
    stage.pools["bad-cpu"] = lent_pool({"metadata.name": "bad-cpu"})
    plan = stage.reconcile()
    assert not plan.applies
    assert stage.condition("Validated")["message"].startswith(
        "spec.rollouts[0].name: RolloutPool bad-cpu exists and is not this job's"
    )


def test_engine_settings_do_not_change_under_a_running_trainer() -> None:
    stage = Stage()
    stage.to_running()
    stage.edit({"spec.trainer.engine.config": {"cpuOffload": True}})
    assert not stage.reconcile(2).applies
    message = stage.condition("Validated")["message"]
    assert message.startswith("spec.trainer.engine.config: is immutable while the job is not")
    stage.edit({"spec.suspend": True})
    stage.converge(2)
    assert stage.condition("Validated")["status"] == "True"


def test_a_pool_of_a_sync_group_that_the_job_lacks_is_told_of() -> None:
    stage = Stage({"spec.rollouts[0].syncGroup": "npu"})
    stage.converge()
    assert stage.condition("Validated")["message"] == (
        "spec.rollouts[0].syncGroup: the job has no sync group 'npu', only default; correct the "
        "name, or add the group to the job's spec.weightSync.groups"
    )


def test_a_lent_pool_of_such_a_group_gets_no_rollouts_and_is_not_the_jobs_fault() -> None:
    stage = Stage()
    stage.pools["lent"] = lent_pool({"spec.syncGroup": "npu"})
    stage.converge(2)
    assert stage.condition("Validated")["status"] == "True"
    assert stage.pool_condition("lent", "Validated")["message"].startswith("spec.syncGroup: the")
    assert "Deployment/lent" not in stage.children
