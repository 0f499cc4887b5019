"""The soaked jobs: the examples, with what faults need, and a plan that they can bear."""

from __future__ import annotations

import pytest

from hack.soak.fault_plan import FaultKind, make_plan
from hack.soak.soak_job import JOBS, SILENT_S, TINY, VLLM, SoakJob, manifest

OF_SERVERS = {FaultKind.KILL_SERVER, FaultKind.STOP_SERVER}


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_a_job_has_what_its_faults_need(job: SoakJob) -> None:
    found = manifest(job)
    (pool,) = found["spec"]["rollouts"]
    assert (found["metadata"]["name"], pool["replicas"]) == (job.name, job.rollouts)
    assert job.pool == f"{job.name}-{pool['name']}"
    assert job.scaled != job.rollouts
    (container,) = pool["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"memory": job.memory_limit}
    for owner in (found["spec"]["trainer"], pool):
        assert {t["tolerationSeconds"] for t in owner["template"]["spec"]["tolerations"]} == {5}
    assert found["spec"]["trainer"]["checkpoint"]["volume"]
    assert "weightSync" not in found["spec"]


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_the_negative_control_differs_in_weight_sync_alone(job: SoakJob) -> None:
    found = manifest(job, weight_sync=False)
    assert found["spec"].pop("weightSync") == {"enabled": False}
    assert found == manifest(job)


def test_only_rollouts_with_a_server_have_its_faults() -> None:
    assert OF_SERVERS.isdisjoint(TINY.faults)
    assert set(VLLM.faults) >= OF_SERVERS


def test_vllm_is_stopped_for_shorter_and_for_longer_than_its_agent_waits() -> None:
    plan = [
        fault
        for seed in range(20)
        for fault in make_plan(seed, 900, VLLM.faults, every=VLLM.every)
        if fault.kind is FaultKind.STOP_SERVER
    ]
    assert {fault.lasts > SILENT_S for fault in plan} == {False, True}
    (pool,) = manifest(VLLM)["spec"]["rollouts"]
    assert pool["engine"]["config"]["silentSeconds"] == SILENT_S
    assert pool["engine"]["config"]["dtype"] == "float32", "the example's own settings stay"


def test_rollouts_are_on_the_one_node_that_has_their_image_and_the_trainer_is_not() -> None:
    spec = manifest(VLLM, node="n1")["spec"]
    (pool,) = spec["rollouts"]
    assert pool["template"]["spec"]["nodeSelector"] == {"kubernetes.io/hostname": "n1"}
    affinity = spec["trainer"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    (expression,) = term["preference"]["matchExpressions"]
    assert (expression["operator"], expression["values"]) == ("NotIn", ["n1"])


@pytest.mark.parametrize("seed", range(20))
def test_fifteen_minutes_have_more_than_thirty_faults_and_all_kinds_of_rollouts_on_vllm(
    seed: int,
) -> None:
    plan = make_plan(seed, 900, VLLM.faults, every=VLLM.every)
    assert len(plan) > 30
    assert {fault.kind for fault in plan} == set(FaultKind)
