"""Every weight-sync engine of the CPU image between real pods."""

import json
from typing import Any

import pytest

from hack.cluster.kubectl import Kubectl, example
from hack.demo.job_progress import JobWatcher

JOB = "reverse"
STEPS = 12
STORE = "/mnt/weights"
CONFIG: dict[str, dict[str, Any]] = {"store": {"url": f"file://{STORE}"}}
ENGINES = ("mooncake", "kimi", "nixl", "ray", "store")
RUNS = [
    *(pytest.param(engine, CONFIG.get(engine, {}), id=engine) for engine in ENGINES),
    pytest.param("kimi", {"nodeOf": "address"}, id="kimi-where-each-pod-is-a-node"),
]

CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "weights"},
    "spec": {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    },
}


def job_with(engine: str, config: dict[str, Any]) -> dict[str, Any]:
    """The example with two trainer ranks and this engine."""
    job = example("reverse.yaml", maxSteps=STEPS)
    job["spec"]["weightSync"] = {"engine": engine, "config": config}
    job["spec"]["trainer"]["replicas"] = 2
    if engine == "store":
        for owner in (job["spec"]["trainer"], *job["spec"]["rollouts"]):
            pod = owner["template"]["spec"]
            claim = {"claimName": "weights"}
            pod["volumes"] = [{"name": "weights", "persistentVolumeClaim": claim}]
            pod["containers"][0]["volumeMounts"] = [{"name": "weights", "mountPath": STORE}]
    return job


@pytest.mark.cluster
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("engine", "config"), RUNS)
def test_versions_travel_between_pods_with_every_engine(
    kubectl: Kubectl, engine: str, config: dict[str, Any]
) -> None:
    if engine == "store":
        kubectl.apply(CLAIM)
    kubectl.apply(job_with(engine, config))
    job = JobWatcher(kubectl, JOB)
    seen = job.until(lambda s: s.phase == "Succeeded", seconds=240)
    assert len(seen.rollouts) == 2
    for pod, metrics in seen.rollouts.items():
        assert metrics.get("rollcall_weight_version") == STEPS, pod
    (group,) = kubectl.get("rljob", JOB)["status"]["syncGroups"]
    assert (group["engine"], group["phase"]) == (engine, "Stable")
    command = ("rollcall-sync", "engines", "--json")
    found = json.loads(kubectl.run("exec", f"{JOB}-trainer-0", "--", *command))
    available = {row["name"] for row in found if row["available"]}
    assert available >= {"gloo", *ENGINES}
