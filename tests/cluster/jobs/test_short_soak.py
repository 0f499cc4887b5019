"""A short soak of a job by a fixed plan; `make chaos` runs a long one with every kind of fault."""

import os

import pytest

from hack.cluster.installation import EXISTING
from hack.cluster.kubectl import Kubectl
from hack.soak import soak_run
from hack.soak.fault_plan import QUICK, FaultKind, PlannedFault, make_plan
from hack.soak.soak_job import VLLM

SECONDS, SEED = 70, 5  # the shortest plan that has every kind of QUICK
CONTROL_SECONDS = 45
OF_SERVERS = (FaultKind.KILL_SERVER, FaultKind.STOP_SERVER, FaultKind.OOM_ROLLOUT)
VLLM_SECONDS, VLLM_SEED = 60, 2  # one of each, and the stop is long
VLLM_TIMEOUT = pytest.mark.timeout(1800, func_only=True)  # servers start in minutes
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        EXISTING or os.geteuid() != 0, reason="faults are done to the local cluster's own nodes"
    ),
]


@pytest.mark.alone
def test_a_job_survives_a_short_soak(kubectl: Kubectl) -> None:
    plan = make_plan(SEED, SECONDS, QUICK)
    result = soak_run.run(kubectl, soak_run.SoakOptions(plan, SECONDS), say=print)
    assert result["violations"] == []
    assert result["not_injected"] == []
    assert {kind for kind in result["faults"] if kind != "total"} == set(QUICK)
    assert result["detection"]["all"]["n"] > 0
    assert len(result["reward"]) == 4


def test_the_verdict_fails_when_weights_do_not_travel(kubectl: Kubectl) -> None:
    plan = make_plan(SEED, CONTROL_SECONDS, [FaultKind.KILL_ROLLOUT])
    options = soak_run.SoakOptions(plan, CONTROL_SECONDS, weight_sync=False)
    result = soak_run.run(kubectl, options, say=print)
    assert any(found.startswith("rollouts_have_learned") for found in result["violations"])
    assert all(reward < 0.3 for reward in result["reward"].values())


def vllm_plan(*kinds: FaultKind) -> list[PlannedFault]:
    return make_plan(VLLM_SEED, VLLM_SECONDS, kinds, every=VLLM.every)


@pytest.mark.vllm_soak
@VLLM_TIMEOUT
def test_rollouts_on_vllm_survive_a_short_soak(kubectl: Kubectl, vllm_nodes: list[str]) -> None:
    plan = vllm_plan(*OF_SERVERS)
    options = soak_run.SoakOptions(plan, VLLM_SECONDS, job=VLLM, node=vllm_nodes[0])
    result = soak_run.run(kubectl, options, say=print)
    assert result["violations"] == []
    assert result["not_injected"] == []
    assert {kind for kind in result["faults"] if kind != "total"} == set(OF_SERVERS)
    assert len(result["reward"]) == VLLM.rollouts


@pytest.mark.vllm_soak
@VLLM_TIMEOUT
def test_the_verdict_fails_when_weights_do_not_travel_to_vllm(
    kubectl: Kubectl, vllm_nodes: list[str]
) -> None:
    plan = vllm_plan(FaultKind.KILL_SERVER)
    options = soak_run.SoakOptions(
        plan, VLLM_SECONDS, job=VLLM, node=vllm_nodes[0], weight_sync=False
    )
    result = soak_run.run(kubectl, options, say=print)
    assert any(found.startswith("rollouts_have_learned") for found in result["violations"])
    assert len(result["reward"]) == VLLM.rollouts
    assert all(reward < 0.3 for reward in result["reward"].values())
