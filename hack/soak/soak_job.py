"""The job that has to live through it, and its manifest."""

from __future__ import annotations

from typing import Any

from hack.cluster.kubectl import example
from hack.soak.shared_volume import CLAIM

NAME = "reverse"
POOL = f"{NAME}-cpu"
ROLLOUTS = 4
MAX_STALENESS = 2
SUSPECT_AFTER_S = 3
_MOST_STEPS = 1_000_000  # more than any soak will see
_MEMORY_LIMIT = "640Mi"
_TOLERATIONS = [
    {
        "key": f"node.kubernetes.io/{key}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 5,
    }
    for key in ("not-ready", "unreachable")
]


def manifest(*, weight_sync: bool = True) -> dict[str, Any]:
    """The example with four rollouts, a checkpoint volume, and no end.

    Args:
        weight_sync: False makes the negative control: rollouts keep their first weights.
    """
    job = example("reverse.yaml", maxSteps=_MOST_STEPS, maxStaleness=MAX_STALENESS)
    spec = job["spec"]
    spec["trainer"]["checkpoint"] = {
        "everySteps": 20,
        "volume": {"persistentVolumeClaim": {"claimName": CLAIM}},
    }
    (pool,) = spec["rollouts"]
    pool["replicas"] = ROLLOUTS
    # The limit is there for the kernel to enforce.
    (container,) = pool["template"]["spec"]["containers"]
    container["resources"]["limits"] = {"memory": _MEMORY_LIMIT}
    # What a node takes with it should come up elsewhere soon, not after Kubernetes' five minutes.
    for owner in (spec["trainer"], pool):
        owner["template"]["spec"]["tolerations"] = _TOLERATIONS
    spec["trainer"]["template"]["spec"]["terminationGracePeriodSeconds"] = 5
    spec["membership"] = {"suspectAfterMilliseconds": SUSPECT_AFTER_S * 1000}
    spec["failurePolicy"] = {"maxRestarts": 1000}
    if not weight_sync:
        spec["weightSync"] = {"enabled": False}
    return job
