"""A short soak of a job by a fixed plan; `make chaos` runs a long one with every kind of fault."""

import os

import pytest

from hack.cluster.installation import EXISTING
from hack.cluster.kubectl import Kubectl
from hack.soak import soak_run
from hack.soak.fault_plan import QUICK, FaultKind, make_plan

SECONDS, SEED = 70, 5  # the shortest plan that has every kind of QUICK
CONTROL_SECONDS = 45
pytestmark = [
    pytest.mark.cluster,
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
