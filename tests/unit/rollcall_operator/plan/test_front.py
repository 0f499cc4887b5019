"""The front: what is created for it, who reaches it, and when it goes."""

import json
from typing import Any

import pytest

from rollcall_operator.api import labels
from rollcall_protocol import pod_contract
from rollcall_protocol.front_config import FrontConfig
from rollcall_protocol.job_config import JobConfig
from rollcall_protocol.wire.job_snapshot import TrainingResult
from rollcall_protocol.wire.json_codec import decode
from tests.apiserver.bad_manifests.manifests import DELETE, FRONT
from tests.unit.rollcall_operator.plan.simulator import JobSimulator

SET, SERVICE, TRAINER = "StatefulSet/bad-front", "Service/bad-front", "StatefulSet/bad-trainer"


def running(**more: Any) -> JobSimulator:
    simulator = JobSimulator(FRONT | more)
    simulator.to_running()
    return simulator


def pod_of(simulator: JobSimulator, child: str = SET) -> dict[str, Any]:
    found: dict[str, Any] = simulator.children[child]["spec"]["template"]["spec"]
    return found


def variables(simulator: JobSimulator, child: str = SET) -> dict[str, Any]:
    env = pod_of(simulator, child)["containers"][0]["env"]
    return {item["name"]: item.get("value") for item in env}


def test_the_job_owns_a_stateful_set_and_a_service_of_the_pods_that_are_ready() -> None:
    simulator = running()
    front, service = simulator.children[SET], simulator.children[SERVICE]
    for child in (front, service):
        (owner,) = child["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("RLJob", "job-uid")
    own = {labels.JOB: "bad", labels.ROLE: "front"}
    assert service["spec"]["selector"] == own
    assert service["spec"]["publishNotReadyAddresses"] is False
    assert [port["port"] for port in service["spec"]["ports"]] == [7075, 9090]
    assert front["spec"]["selector"] == {"matchLabels": own}
    assert front["spec"]["replicas"] == 1
    assert front["metadata"]["name"] + "-0" == pod_contract.front_pod("bad", 0)


def test_a_pod_has_a_token_for_the_coordinator_and_the_keys_of_the_agents() -> None:
    simulator = running()
    pod = pod_of(simulator)
    (worker,) = pod["containers"]
    assert worker["command"] == ["rollcall-front"]
    assert worker["securityContext"]["runAsNonRoot"] is True
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["rollcall-api-keys"]["secret"] == {"secretName": "agents"}
    (source,) = volumes["rollcall-token"]["projected"]["sources"]
    assert source["serviceAccountToken"]["audience"] == "rollcall.dev/job-uid"
    assert "rollcall-tls" not in volumes
    mounts = {mount["name"]: mount["mountPath"] for mount in worker["volumeMounts"]}
    assert mounts["rollcall-api-keys"] == variables(simulator)[pod_contract.API_KEYS_DIR]


def test_its_settings_reach_its_pods_and_others_know_that_there_is_one() -> None:
    changes = {"spec.front.maxRunning": 3, "spec.front.trajectorySeconds": 60}
    simulator = running(**changes)
    own = decode(FrontConfig, json.loads(variables(simulator)[pod_contract.FRONT_CONFIG]))
    assert own == FrontConfig(most_running=3, trajectory_seconds=60.0)
    for child in (SET, TRAINER):
        found = decode(JobConfig, json.loads(variables(simulator, child)[pod_contract.CONFIG]))
        assert found.front


def test_with_a_certificate_of_its_own_it_speaks_tls() -> None:
    simulator = running(**{"spec.front.tlsSecret": "front-tls"})
    volumes = {volume["name"]: volume for volume in pod_of(simulator)["volumes"]}
    assert volumes["rollcall-tls"]["secret"] == {"secretName": "front-tls"}
    assert pod_contract.TLS_DIR in variables(simulator)


@pytest.mark.parametrize("with_keys", [True, False])
def test_without_keys_only_pods_of_the_namespace_reach_it(with_keys: bool) -> None:
    keys = {} if with_keys else {"spec.front.apiKeysSecret": DELETE}
    simulator = running(**keys, **{"spec.front.withoutApiKeys": not with_keys})
    agents = simulator.children["NetworkPolicy/bad-front"]["spec"]["ingress"][0]
    own = decode(FrontConfig, json.loads(variables(simulator)[pod_contract.FRONT_CONFIG]))
    assert own.without_keys is not with_keys
    assert agents["ports"] == [{"protocol": "TCP", "port": 7075}]
    assert agents.get("from") == (None if with_keys else [{"podSelector": {}}])


def test_more_pods_and_other_bounds_leave_the_trainer_alone() -> None:
    simulator = running()
    before = simulator.children[TRAINER]["spec"]
    simulator.edit({"spec.front.replicas": 2, "spec.front.maxRunning": 9})
    simulator.converge(1)
    assert simulator.children[SET]["spec"]["replicas"] == 2
    assert simulator.children[TRAINER]["spec"] == before


def test_it_has_no_pods_while_the_job_is_suspended() -> None:
    simulator = running()
    simulator.edit({"spec.suspend": True})
    simulator.converge(5)
    assert simulator.children[SET]["spec"]["replicas"] == 0


def test_it_is_a_member_of_nothing() -> None:
    simulator = running()
    assert simulator.roster is not None
    assert not any("front" in member.pod for member in simulator.roster.members)


# --- what the condition says ----------------------------------------------------------------------

QUOTA = (
    "create Pod bad-front-0 in StatefulSet bad-front failed error: pods "
    '"bad-front-0" is forbidden: exceeded quota: small, requested: pods=1, limited: pods=2'
)
KEYS = 'MountVolume.SetUp failed for volume "rollcall-api-keys" : secret "agents" not found'
TAINT = "0/1 nodes are available: 1 node(s) had untolerated taint {gpu: true}."
CONTAINER = "spec.front.template.spec.containers[0]"
PROBLEMS: list[tuple[str, dict[str, Any], str, str]] = [
    (
        "Unschedulable",
        {"unschedulable": TAINT},
        f"spec.front.template.spec: pod bad-front-0 cannot be scheduled: {TAINT}; ",
        "change its resource requests, nodeSelector, tolerations or volumes, or add nodes",
    ),
    (
        "ImagePullFailed",
        {"waiting_reason": "ImagePullBackOff"},
        f"{CONTAINER}.image: image 'rollcall/worker-cpu:dev' of pod bad-front-0 cannot be pulled",
        "correct the name, push the image, or set imagePullSecrets",
    ),
    (
        "CrashLoop",
        {"exit_code": 1, "restarts": 4, "exit_message": "OSError: no space"},
        f"{CONTAINER}: container front of pod bad-front-0 ended with exit code 1: OSError",
        "read its log (kubectl logs bad-front-0 -c front --previous), then correct its command, ",
    ),
    (
        "MountFailed",
        {"mounting_since": 1.0, "mount_failure": KEYS},
        "spec.front.apiKeysSecret: volume 'rollcall-api-keys' of pod bad-front-0 cannot be mounted",
        'secret "agents" not found; create the Secret, or correct its name',
    ),
]


@pytest.mark.parametrize(
    ("reason", "facts", "begins", "cure"), PROBLEMS, ids=[p[0] for p in PROBLEMS]
)
def test_what_keeps_its_pods_away_is_in_a_condition_with_field_and_cure(
    reason: str, facts: dict[str, Any], begins: str, cure: str
) -> None:
    simulator = running()
    (pod,) = simulator.pods_of("bad-front")
    simulator.change(pod, ready=False, running=False, **facts)
    plan = simulator.converge(5)
    condition = simulator.condition("FrontReady")
    assert (condition["status"], condition["reason"]) == ("False", reason)
    assert condition["message"].startswith(begins)
    assert cure in condition["message"]
    assert [(e.type, e.reason) for e in plan.events] == [("Warning", reason)]
    assert simulator.condition("Running")["status"] == "True"


def test_a_quota_that_refuses_its_pods_is_in_the_condition_and_looked_for_again() -> None:
    simulator = JobSimulator(FRONT)
    simulator.converge()
    simulator.schedule()
    (pod,) = simulator.pods_of("bad-front")
    del simulator.pods[pod.uid]
    plan = simulator.reconcile(5)
    assert plan.requeue_after is not None
    assert plan.requeue_after <= 10, "no watch says that a StatefulSet cannot create its pods"
    simulator.creation_failures[SET] = QUOTA
    simulator.converge(5)
    condition = simulator.condition("FrontReady")
    assert (condition["status"], condition["reason"]) == ("False", "PodsRefused")
    assert condition["message"] == (
        "spec.front.template: the API server refuses pods of StatefulSet/bad-front: exceeded "
        "quota: small, requested: pods=1, limited: pods=2; raise the ResourceQuota of the "
        "namespace, or ask for fewer replicas or smaller resources"
    )


def test_the_condition_says_how_many_are_ready_and_what_they_wait_for() -> None:
    simulator = running(**{"spec.front.replicas": 2})
    assert simulator.condition("FrontReady")["message"] == "2 of 2 front pods are ready"
    first, _ = simulator.pods_of("bad-front")
    simulator.change(first, ready=False)
    simulator.converge(5)
    assert simulator.condition("FrontReady")["message"] == (
        "1 of 2 front pods are ready: a front pod is ready while a rollout serves"
    )
    simulator.change(first, ready=False, up=False, running=False)
    simulator.converge(15)
    condition = simulator.condition("FrontReady")
    assert (condition["reason"], condition["message"]) == (
        "Starting",
        "1 of 2 front pods are ready",
    )


def test_only_a_job_with_a_front_has_the_condition() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    assert "FrontReady" not in {c["type"] for c in simulator.status["conditions"]}


def test_the_condition_follows_the_job_when_it_is_suspended_or_done() -> None:
    simulator = running()
    simulator.edit({"spec.suspend": True})
    simulator.converge(5)
    assert simulator.condition("FrontReady")["reason"] == "Suspended"
    simulator = running()
    simulator.report(step=200, finished=TrainingResult(step=200))
    simulator.converge(1)
    condition = simulator.condition("FrontReady")
    assert (condition["status"], condition["reason"]) == ("False", "Finished")
