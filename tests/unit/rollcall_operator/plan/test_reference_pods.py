"""A reference in pods of its own: what is created for it, when it goes, and what waits for it."""

import json
from typing import Any

import pytest

from rollcall_operator.api import labels
from rollcall_protocol import pod_contract
from rollcall_protocol.job_config import JobConfig, ReferenceConfig, ReferencePodConfig
from rollcall_protocol.wire.job_snapshot import TrainingResult
from rollcall_protocol.wire.json_codec import decode
from tests.apiserver.bad_manifests.manifests import DELETE, OWN_REFERENCE
from tests.unit.rollcall_operator.plan.simulator import JobSimulator

DEPLOYMENT, SERVICE = "Deployment/bad-reference", "Service/bad-reference"


def running(**more: Any) -> JobSimulator:
    simulator = JobSimulator(OWN_REFERENCE | more)
    simulator.to_running()
    return simulator


def variables(simulator: JobSimulator, child: str) -> dict[str, Any]:
    containers = simulator.children[child]["spec"]["template"]["spec"]["containers"]
    return {item["name"]: item.get("value") for item in containers[0]["env"]}


def replicas(simulator: JobSimulator) -> int:
    found: int = simulator.children[DEPLOYMENT]["spec"]["replicas"]
    return found


def test_the_job_owns_a_deployment_and_a_service_that_names_the_pods_that_are_ready() -> None:
    simulator = running()
    deployment, service = simulator.children[DEPLOYMENT], simulator.children[SERVICE]
    for child in (deployment, service):
        (owner,) = child["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("RLJob", "job-uid")
    own = {labels.JOB: "bad", labels.ROLE: "reference"}
    assert service["spec"]["selector"] == own
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is False
    assert [port["port"] for port in service["spec"]["ports"]] == [7074, 9090]
    assert deployment["spec"]["selector"] == {"matchLabels": own}
    assert own.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    assert replicas(simulator) == 2


def test_a_pod_is_a_restricted_worker_that_has_no_token() -> None:
    pod = running().children[DEPLOYMENT]["spec"]["template"]["spec"]
    (worker,) = pod["containers"]
    assert worker["command"] == ["rollcall-reference"]
    assert worker["securityContext"]["runAsNonRoot"] is True
    assert worker["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": 9090}
    assert worker["resources"]["requests"] == {"cpu": "100m", "memory": "256Mi"}
    assert {v["name"] for v in pod["volumes"]} == {
        "rollcall-trust",
        "rollcall-tls",
        "rollcall-state",
        "rollcall-tmp",
    }
    assert pod_contract.TOKEN_DIR not in {item["name"] for item in worker["env"]}


def test_trainers_show_a_token_there_that_no_other_endpoint_takes() -> None:
    pod = running().children["StatefulSet/bad-trainer"]["spec"]["template"]["spec"]
    (volume,) = [v for v in pod["volumes"] if v["name"] == "rollcall-token"]
    sources = [source["serviceAccountToken"] for source in volume["projected"]["sources"]]
    assert {source["path"]: source["audience"] for source in sources} == {
        "token": "rollcall.dev/job-uid",
        "reference-token": "rollcall.dev/job-uid/reference",
    }


def test_trainer_and_pods_read_where_the_reference_is_and_on_what_it_computes() -> None:
    limits = "spec.reference.template.spec.containers[0].resources.limits"
    simulator = running(**{"spec.reference.path": "org/old", limits: {"nvidia.com/gpu": 1}})
    host = ReferenceConfig(model="org/old", host="bad-reference.team.svc")
    for child in ("StatefulSet/bad-trainer", DEPLOYMENT):
        config = json.loads(variables(simulator, child)[pod_contract.CONFIG])
        assert decode(JobConfig, config).reference == host
    own = json.loads(variables(simulator, DEPLOYMENT)[pod_contract.REFERENCE_CONFIG])
    assert decode(ReferencePodConfig, own) == ReferencePodConfig("auto", {"nvidia.com/gpu": 1})


def test_without_a_template_the_trainer_has_the_reference() -> None:
    simulator = JobSimulator({"spec.algorithm.settings.klCoefficient": "0.1"})
    simulator.to_running()
    assert not {DEPLOYMENT, SERVICE} & simulator.children.keys()
    config = json.loads(variables(simulator, "StatefulSet/bad-trainer")[pod_contract.CONFIG])
    assert decode(JobConfig, config).reference.host == ""
    assert "ReferenceReady" not in {c["type"] for c in simulator.status["conditions"]}


def test_they_are_members_of_nothing() -> None:
    simulator = running()
    assert simulator.roster is not None
    names = {member.pod for member in simulator.roster.members}
    assert not any("reference" in name for name in names)
    epoch = simulator.status["epoch"]
    del simulator.pods[simulator.pods_of("bad-reference")[0].uid]
    simulator.converge(5)
    assert simulator.status["epoch"] == epoch


def test_training_waits_only_while_no_pod_is_ready_and_the_conditions_say_so() -> None:
    simulator = running()
    assert simulator.condition("ReferenceReady")["status"] == "True"
    one, other = simulator.pods_of("bad-reference")
    simulator.change(one, ready=False)
    simulator.converge(5)
    assert simulator.condition("ReferenceReady")["message"] == "1 of 2 reference pods are ready"
    assert simulator.condition("Running")["status"] == "True", "one answers"
    simulator.change(other, ready=False)
    simulator.converge(5)
    waits = simulator.condition("Running")
    assert (waits["status"], waits["reason"]) == ("False", "WaitingForReference")
    events = [event for plan in simulator.plans for event in plan.events]
    assert (events[-1].type, events[-1].reason) == ("Warning", "WaitingForReference")
    simulator.change(other, ready=True)
    simulator.converge(5)
    assert simulator.condition("Running")["status"] == "True"


def test_more_pods_and_another_image_need_no_suspension_and_no_other_pods() -> None:
    simulator = running()
    before = {name: child.get("spec") for name, child in simulator.children.items()}
    image = "spec.reference.template.spec.containers[0].image"
    simulator.edit({"spec.reference.replicas": 3, image: "other"})
    simulator.converge(1)
    assert replicas(simulator) == 3
    after = {name: child.get("spec") for name, child in simulator.children.items()}
    assert {name for name in after if after[name] != before[name]} == {DEPLOYMENT}


def test_they_outlast_the_trainer_of_a_suspended_job() -> None:
    simulator = running()
    simulator.edit({"spec.suspend": True})
    trainer = simulator.change(simulator.trainer, terminating=True)
    simulator.converge(1)
    assert replicas(simulator) == 2, "the trainer's last step may need them"
    del simulator.pods[trainer.uid]
    simulator.converge(1)
    assert replicas(simulator) == 0
    assert simulator.condition("ReferenceReady")["reason"] == "Suspended"


def test_they_go_with_a_job_that_is_done_unless_its_pods_stay() -> None:
    for policy, left in (("All", 0), ("None", 2)):
        simulator = running(**{"spec.cleanPodPolicy": policy})
        simulator.report(step=200, finished=TrainingResult(step=200))
        simulator.converge(1)
        simulator.schedule()
        simulator.converge(1)
        assert replicas(simulator) == left, policy


def test_they_are_deleted_when_the_trainer_takes_the_reference_back() -> None:
    simulator = running()
    simulator.edit({"spec.suspend": True})
    simulator.converge(1)
    simulator.edit({"spec.reference": {}})
    simulator.converge(1)
    assert not {DEPLOYMENT, SERVICE} & simulator.children.keys()
    assert {"Service/bad-trainer", "StatefulSet/bad-trainer"} <= simulator.children.keys()
    assert "ReferenceReady" not in {c["type"] for c in simulator.status["conditions"]}


def test_a_deployment_of_that_name_which_is_not_the_jobs_stays() -> None:
    simulator = running()
    simulator.children[DEPLOYMENT]["metadata"]["ownerReferences"] = []
    simulator.edit({"spec.suspend": True, "spec.reference": DELETE})
    simulator.converge(1)
    assert DEPLOYMENT in simulator.children


CONTAINER = "spec.reference.template.spec.containers[0]"
TAINT = "0/1 nodes are available: 1 node(s) had untolerated taint {gpu: true}."


@pytest.mark.parametrize(
    ("reason", "facts", "begins", "cure"),
    [
        (
            "Unschedulable",
            {"unschedulable": TAINT},
            "spec.reference.template.spec: pod bad-reference-",
            f"cannot be scheduled: {TAINT}; change its resource requests, nodeSelector, toleratio",
        ),
        (
            "ImagePullFailed",
            {"waiting_reason": "ErrImagePull"},
            f"{CONTAINER}.image: image 'rollcall/worker-cpu:dev' of pod bad-reference-",
            "correct the name, push the image, or set imagePullSecrets",
        ),
        (
            "OutOfMemory",
            {"exit_code": 137, "oom_killed": True, "restarts": 2},
            f"{CONTAINER}.resources.limits.memory: container reference of pod bad-reference-",
            "raise",
        ),
    ],
    ids=["Unschedulable", "ImagePullFailed", "OutOfMemory"],
)
def test_what_keeps_a_pod_away_is_in_the_condition_with_field_and_cure(
    reason: str, facts: dict[str, Any], begins: str, cure: str
) -> None:
    simulator = running()
    simulator.change(simulator.pods_of("bad-reference")[0], ready=False, running=False, **facts)
    plan = simulator.converge(5)
    condition = simulator.condition("ReferenceReady")
    assert (condition["status"], condition["reason"]) == ("False", reason)
    assert condition["message"].startswith(begins)
    assert cure in condition["message"]
    assert [(e.type, e.reason) for e in plan.events] == [("Warning", reason)]


def test_a_quota_that_refuses_a_pod_is_in_the_condition() -> None:
    simulator = running()
    del simulator.pods[simulator.pods_of("bad-reference")[0].uid]
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate"}
    message = 'pods "bad-reference-x" is forbidden: exceeded quota: small, requested: pods=1'
    simulator.children[DEPLOYMENT]["status"] = {"conditions": [{**failure, "message": message}]}
    simulator.converge(5)
    condition = simulator.condition("ReferenceReady")
    assert (condition["status"], condition["reason"]) == ("False", "PodsRefused")
    assert condition["message"] == (
        "spec.reference.template: the API server refuses pods of Deployment/bad-reference: exceeded"
        " quota: small, requested: pods=1; raise the ResourceQuota of the namespace, or ask for "
        "fewer replicas or smaller resources"
    )
