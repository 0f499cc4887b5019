"""Children that the API server refuses, reported with paths in the job."""

from typing import Any

import pytest

from rollcall_operator.plan.apply_needed import digest
from rollcall_operator.plan.model import Refusal
from rollcall_operator.plan.refusals import NO_CHILD
from tests.apiserver.bad_manifests.manifests import FRONT, OWN_REFERENCE
from tests.unit.rollcall_operator.plan.simulator import (
    JobSimulator,
    lent_pool,
    orphaned,
    writes_anything,
)

CONTAINER = "spec.trainer.template.spec.containers[0]"


def refuse(simulator: JobSimulator, key: str, message: str) -> None:
    """The next plan's child `key` is refused by the API server."""
    plan = simulator.plans[-1]
    body = next(b for b in plan.applies if f"{b['kind']}/{b['metadata']['name']}" == key)
    simulator.refusals[key] = Refusal(digest(body), message)
    simulator.children.pop(key, None)


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
def test_a_refused_trainer_is_reported_with_the_jobs_field(message: str, begins: str) -> None:
    simulator = JobSimulator()
    simulator.reconcile()
    refuse(simulator, "StatefulSet/bad-trainer", message)
    simulator.converge()
    condition = simulator.condition("Validated")
    assert (condition["status"], condition["reason"]) == ("False", "InvalidSpec")
    assert condition["message"].startswith(begins)
    assert "StatefulSet/bad-trainer" in condition["message"]
    assert simulator.status["phase"] == "Pending"


@pytest.mark.parametrize(
    ("child", "field"),
    [
        ("StatefulSet/bad-front", "spec.front.template"),
        ("Deployment/bad-reference", "spec.reference.template"),
    ],
)
def test_other_refused_pods_are_reported_with_the_jobs_field(child: str, field: str) -> None:
    simulator = JobSimulator({**OWN_REFERENCE, **FRONT})
    simulator.reconcile()
    refuse(simulator, child, INVALID.format(child.replace("/", ' "') + '"'))
    simulator.converge()
    message = simulator.condition("Validated")["message"]
    assert message.startswith(f"{field}.spec.containers[0].name: Invalid value")


def test_a_refusal_is_reported_at_once_even_right_after_another_write() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    simulator.edit({"spec.rollouts[0].template.spec.containers[0].image": "other"})
    simulator.reconcile(60)
    simulator.reconcile(0.1)
    refuse(simulator, "Deployment/bad-cpu", "no")
    simulator.reconcile(0.1)
    assert simulator.condition("Validated")["status"] == "False"
    assert simulator.status["phase"] == "Running"


def test_a_refused_child_is_not_applied_again_until_it_changes() -> None:
    simulator = JobSimulator()
    simulator.reconcile()
    refuse(simulator, "StatefulSet/bad-trainer", "no")
    simulator.converge()
    assert not writes_anything(simulator.reconcile(60))
    simulator.edit({"spec.trainer.template.spec.containers[0].image": "other"})
    assert "StatefulSet" in [body["kind"] for body in simulator.reconcile().applies]


def test_a_refusal_that_is_over_is_forgotten() -> None:
    simulator = JobSimulator()
    simulator.reconcile()
    refuse(simulator, "StatefulSet/bad-trainer", "quota exceeded")
    simulator.converge()
    simulator.refusals.clear()
    simulator.converge()
    assert simulator.condition("Validated")["status"] == "True"
    assert simulator.status["phase"] == "Starting"


def test_a_refused_pool_deployment_is_reported_by_job_and_pool() -> None:
    simulator = JobSimulator()
    simulator.reconcile()
    simulator.reconcile()
    refuse(simulator, "Deployment/bad-cpu", INVALID.format('Deployment.apps "bad-cpu"'))
    simulator.converge(2)
    job = simulator.condition("Validated")["message"]
    assert job.startswith("spec.rollouts[0].template.spec.containers[0].name: ")
    pool = simulator.pool_condition("bad-cpu", "Validated")["message"]
    assert pool.startswith("spec.template.spec.containers[0].name: ")


def test_a_refused_lent_pool_is_not_the_jobs_fault() -> None:
    simulator = JobSimulator()
    simulator.pools["lent"] = lent_pool()
    simulator.reconcile()
    refuse(simulator, "Deployment/lent", INVALID.format('Deployment.apps "lent"'))
    simulator.converge(2)
    assert simulator.condition("Validated")["status"] == "True"
    assert simulator.pool_condition("lent", "Validated")["status"] == "False"


def test_a_refused_pool_is_reported_with_the_jobs_entry() -> None:
    simulator = JobSimulator()
    simulator.reconcile()
    message = 'RolloutPool.rollcall.dev "bad-cpu" is invalid: spec.replicas: Invalid value: 5'
    simulator.pools.clear()
    refuse(simulator, "RolloutPool/bad-cpu", message)
    simulator.converge()
    begins = "spec.rollouts[0].replicas: Invalid value: 5"
    assert simulator.condition("Validated")["message"].startswith(begins)


def test_a_lower_maximum_than_there_are_rollouts_is_not_forced_upon_a_pool() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    simulator.scale("bad-cpu", 5)
    simulator.edit({"spec.rollouts[0].maxReplicas": 3})
    plan = simulator.converge(2)
    assert not [body for body in plan.applies if body["kind"] == "RolloutPool"]
    message = simulator.condition("Validated")["message"]
    assert message.startswith("spec.rollouts[0].maxReplicas: 3 is below the 5 replicas")


def test_nor_is_a_higher_minimum() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    simulator.scale("bad-cpu", 1)
    simulator.edit({"spec.rollouts[0].minReplicas": 2})
    plan = simulator.converge(2)
    assert not [body for body in plan.applies if body["kind"] == "RolloutPool"]
    message = simulator.condition("Validated")["message"]
    assert message.startswith("spec.rollouts[0].minReplicas: 2 is above the 1 replicas")


def test_a_pool_of_the_same_name_that_the_job_does_not_own_is_left_alone() -> None:
    simulator = JobSimulator()
    simulator.pools["bad-cpu"] = lent_pool({"metadata.name": "bad-cpu"})
    plan = simulator.reconcile()
    assert not plan.applies
    assert simulator.condition("Validated")["message"].startswith(
        "spec.rollouts[0].name: RolloutPool bad-cpu exists and is not owned by this RLJob"
    )


def test_an_object_with_another_owner_is_not_taken_over_even_if_asked() -> None:
    simulator = JobSimulator({"metadata.annotations": {"rollcall.dev/adopt-children": "true"}})
    simulator.converge()
    service = simulator.children["Service/bad-trainer"]
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "another", "uid": "u"}
    service["metadata"]["ownerReferences"] = [owner]
    plan = simulator.reconcile(60)
    assert not plan.applies
    assert simulator.condition("Validated")["message"] == (
        "metadata.name: Service bad-trainer exists and is owned by ConfigMap another; delete it, "
        "or choose another name"
    )


def test_a_pool_that_serves_another_job_is_named() -> None:
    simulator = JobSimulator()
    simulator.reconcile()
    refuse(simulator, "RolloutPool/bad-cpu", "spec.jobRef: Invalid value: is immutable")
    simulator.pools.clear()
    simulator.reconcile(60)
    assert simulator.condition("Validated")["message"] == (
        "spec.rollouts[0].name: RolloutPool bad-cpu serves another RLJob; choose another name"
    )


def test_objects_without_an_owner_are_not_taken_over_unasked() -> None:
    simulator = orphaned()
    assert not simulator.reconcile().applies
    message = simulator.condition("Validated")["message"]
    assert "RolloutPool bad-cpu exists and is not owned by this RLJob" in message
    assert "kubectl annotate rljob bad -n team rollcall.dev/adopt-children=true" in message
    simulator.pools.clear()
    simulator.reconcile(2)
    message = simulator.condition("Validated")["message"]
    assert message.startswith("metadata.name: NetworkPolicy bad-trainer exists and is not owned")


def test_an_annotation_lets_the_job_adopt_them_and_replaces_the_former_trainer() -> None:
    simulator = orphaned()
    simulator.edit({"metadata.annotations": {"rollcall.dev/adopt-children": "true"}})
    former = simulator.trainer.uid
    simulator.converge()
    for child in (*simulator.pools.values(), simulator.children["StatefulSet/bad-trainer"]):
        assert [o["uid"] for o in child["metadata"]["ownerReferences"]] == ["second-uid"]
    assert former not in simulator.pods, "it holds the first job's settings"
    reasons = {event.reason for plan in simulator.plans for event in plan.events}
    assert "ChildrenAdopted" in reasons
    simulator.pods.clear()  # the Deployment replaces the rollouts, whose template has changed
    simulator.to_running()


def test_engine_settings_do_not_change_under_a_running_trainer() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    simulator.edit({"spec.trainer.engine.config": {"offload": "optimizer"}})
    assert not simulator.reconcile(2).applies
    message = simulator.condition("Validated")["message"]
    assert message.startswith("spec.trainer.engine.config: is immutable while the job is not")
    simulator.edit({"spec.suspend": True})
    simulator.converge(2)
    assert simulator.condition("Validated")["status"] == "True"


def test_the_number_of_ranks_does_not_change_under_a_running_trainer() -> None:
    """A pod that is replaced would start as many as the new template asks accelerators for."""
    simulator = JobSimulator({f"{CONTAINER}.resources.limits": {"nvidia.com/gpu": 4}})
    simulator.to_running()
    simulator.edit({f"{CONTAINER}.resources.limits": {"nvidia.com/gpu": 2}})
    assert not simulator.reconcile(2).applies
    assert simulator.condition("Validated")["message"].startswith(
        "spec.trainer.template: now asks for 2 processes in a pod, one for each accelerator; "
        "their number, 4, is immutable while the job is not suspended"
    )
    simulator.edit({"spec.suspend": True})
    simulator.converge(2)
    assert simulator.condition("Validated")["status"] == "True"


def test_a_pool_of_a_sync_group_that_the_job_lacks_is_reported() -> None:
    simulator = JobSimulator({"spec.rollouts[0].syncGroup": "npu"})
    simulator.converge()
    assert simulator.condition("Validated")["message"] == (
        "spec.rollouts[0].syncGroup: the job has no sync group 'npu', only default; correct the "
        "name, or add the group to the job's spec.weightSync.groups"
    )


def test_a_lent_pool_of_such_a_group_gets_no_rollouts_and_is_not_the_jobs_fault() -> None:
    simulator = JobSimulator()
    simulator.pools["lent"] = lent_pool({"spec.syncGroup": "npu"})
    simulator.converge(2)
    assert simulator.condition("Validated")["status"] == "True"
    assert simulator.pool_condition("lent", "Validated")["message"].startswith(
        "spec.syncGroup: the"
    )
    assert "Deployment/lent" not in simulator.children


def test_an_object_of_others_with_the_name_of_a_child_is_named() -> None:
    simulator = JobSimulator()
    simulator.reconcile()
    refuse(simulator, "StatefulSet/bad-trainer", NO_CHILD)
    simulator.converge()
    assert simulator.condition("Validated")["message"] == (
        "metadata.name: StatefulSet bad-trainer exists and is no child of this RLJob; delete it, "
        "or choose another name"
    )


@pytest.mark.parametrize(
    "given",
    [
        {"value": "x"},
        {"value": "[]"},
        {"value": "{}"},
        {"value": '{"trainer_engine": 1}'},
        {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ],
)
def test_settings_of_others_in_the_statefulset_are_repaired(
    given: dict[str, Any],
) -> None:
    simulator = JobSimulator()
    simulator.to_running()
    live = simulator.children["StatefulSet/bad-trainer"]
    (container,) = live["spec"]["template"]["spec"]["containers"]
    (index,) = (i for i, each in enumerate(container["env"]) if each["name"] == "ROLLCALL_CONFIG")
    wanted, container["env"][index] = container["env"][index], {"name": "ROLLCALL_CONFIG"} | given
    simulator.converge()
    (container,) = simulator.children["StatefulSet/bad-trainer"]["spec"]["template"]["spec"][
        "containers"
    ]
    assert container["env"][index] == wanted
    assert simulator.condition("Validated")["status"] == "True"
