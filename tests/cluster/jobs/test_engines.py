"""Every weight-sync engine of the CPU image between real pods: one job, a sync group for each."""

import json
from typing import Any

import pytest

from hack.cluster.examples import example
from hack.cluster.kubectl import Kubectl
from hack.demo.job_progress import JobWatcher
from tests.cluster.jobs import deadlines
from tests.cluster.jobs.tiny_qwen3 import claim

JOB = "reverse"
STEPS = 12
ROLLOUTS = 2
STORE = "/mnt/weights"
# Name of a sync group -> its engine and the engine's settings.
GROUPS: dict[str, tuple[str, dict[str, Any]]] = {
    "mooncake": ("mooncake", {}),
    "kimi": ("kimi", {}),
    "kimi-by-address": ("kimi", {"nodeOf": "address"}),
    "nixl": ("nixl", {}),
    "ray": ("ray", {}),
    "store": ("store", {"url": f"file://{STORE}"}),
}


def job_with_every_engine() -> dict[str, Any]:
    """The example with two trainer ranks, and a pool in a sync group of its own for each engine."""
    job = example("reverse.yaml", maxSteps=STEPS)
    spec = job["spec"]
    spec["trainer"]["replicas"] = 2
    spec["weightSync"] = {
        "groups": [
            {"name": name, "engine": engine, "config": config}
            for name, (engine, config) in GROUPS.items()
        ]
    }
    (pool,) = spec["rollouts"]
    text = json.dumps(pool | {"replicas": ROLLOUTS})
    spec["rollouts"] = [json.loads(text) | {"name": name, "syncGroup": name} for name in GROUPS]
    stores = (pool for pool in spec["rollouts"] if pool["name"] == "store")
    for owner in (spec["trainer"], *stores):
        pod = owner["template"]["spec"]
        pod["volumes"] = [{"name": "weights", "persistentVolumeClaim": {"claimName": "weights"}}]
        pod["containers"][0]["volumeMounts"] = [{"name": "weights", "mountPath": STORE}]
    return job


@pytest.mark.slow
@pytest.mark.timeout(deadlines.WHOLE_TEST)
def test_versions_travel_between_pods_with_every_engine(kubectl: Kubectl) -> None:
    kubectl.apply(claim("weights"))
    kubectl.apply(job_with_every_engine())
    seen = JobWatcher(kubectl, JOB).until(
        lambda s: s.phase == "Succeeded", seconds=deadlines.LEARNED
    )

    assert len(seen.rollouts) == ROLLOUTS * len(GROUPS)
    for pod, metrics in seen.rollouts.items():
        assert metrics.get("rollcall_weight_version") == STEPS, pod
    groups = kubectl.job(JOB)["status"]["syncGroups"]
    found = {group["name"]: (group["engine"], group["phase"]) for group in groups}
    stable = {name: (engine, "Stable") for name, (engine, _) in GROUPS.items()}
    assert {name: found[name] for name in GROUPS} == stable

    command = ("rollcall-sync", "engines", "--json")
    rows = json.loads(kubectl.run("exec", f"{JOB}-trainer-0", "--", *command, seconds=180))
    available = {row["name"] for row in rows if row["available"]}
    assert available >= {"gloo", *(engine for engine, _ in GROUPS.values())}
