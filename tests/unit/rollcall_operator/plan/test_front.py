"""The front: what is created for it, who reaches it, and when it goes."""

import json
from typing import Any

import pytest

from rollcall_operator.api import labels
from rollcall_protocol import pod_contract
from rollcall_protocol.front_config import FrontConfig
from rollcall_protocol.job_config import JobConfig
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
