"""The jobs that have to live through it, and their manifests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hack.cluster.examples import example
from hack.soak.fault_plan import FaultKind
from hack.soak.shared_volume import CLAIM

MAX_STALENESS = 2
SUSPECT_AFTER_S = 3
SILENT_S = 10  # for which vLLM may not answer
_OF_SERVERS = (FaultKind.KILL_SERVER, FaultKind.STOP_SERVER)
_MOST_STEPS = 1_000_000  # more than any soak will see
_TOLERATIONS = [
    {
        "key": f"node.kubernetes.io/{key}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 5,
    }
    for key in ("not-ready", "unreachable")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakJob:
    """An example, and how it is soaked.

    Attributes:
        example: its file.
        name: of the job.
        pool: of its only pool.
        rollouts: how many serve.
        scaled: how many there are to be while FaultKind.SCALE lasts.
        memory_limit: of a rollout, for the kernel to enforce.
        faults: the kinds that can be done to it.
        every: seconds from one fault to the next, at least and at most.
        start_s: seconds until all rollouts serve at the beginning, at most.
        rest_s: seconds until they do after the last fault, at most.
        image: what rollouts need beyond the images that all nodes have; "" for nothing. It is put
            into one node, which has all rollouts, and is not lost.
        engine: more of the pool's `engine.config`.
    """

    example: str
    name: str
    pool: str
    rollouts: int
    scaled: int
    memory_limit: str
    faults: tuple[FaultKind, ...]
    every: tuple[float, float]
    start_s: float
    rest_s: float
    image: str = ""
    engine: tuple[tuple[str, Any], ...] = ()


TINY = SoakJob(
    example="reverse.yaml",
    name="reverse",
    pool="reverse-cpu",
    rollouts=4,
    scaled=6,
    memory_limit="640Mi",
    faults=tuple(kind for kind in FaultKind if kind not in _OF_SERVERS),
    every=(7.0, 15.0),
    start_s=180.0,
    rest_s=120.0,
)
# A vLLM takes 40 s of CPU to start. At the end the kubelet may wait for five minutes before it
# starts a container again that ended often.
VLLM = SoakJob(
    example="reverse-vllm.yaml",
    name="reverse-vllm",
    pool="reverse-vllm-vllm",
    rollouts=3,
    scaled=2,
    memory_limit="3Gi",
    faults=tuple(FaultKind),
    every=(15.0, 30.0),
    start_s=600.0,
    rest_s=600.0,
    image="worker-vllm",
    engine=(("silentSeconds", SILENT_S),),
)
JOBS = {"tiny": TINY, "vllm": VLLM}
"""By the inference engine of their rollouts."""


def manifest(job: SoakJob, *, node: str = "", weight_sync: bool = True) -> dict[str, Any]:
    """The example with its number of rollouts, a checkpoint volume, and no end.

    Args:
        job: which one.
        node: the one for all rollouts, which the trainer avoids; "" if any will do.
        weight_sync: False makes the negative control: rollouts keep their first weights.
    """
    found = example(job.example, maxSteps=_MOST_STEPS, maxStaleness=MAX_STALENESS)
    spec = found["spec"]
    trainer, (pool,) = spec["trainer"], spec["rollouts"]
    trainer["checkpoint"] = {
        "everySteps": 20,
        "volume": {"persistentVolumeClaim": {"claimName": CLAIM}},
    }
    pool["replicas"] = job.rollouts
    pool["engine"].setdefault("config", {}).update(job.engine)
    pods = {"trainer": trainer["template"]["spec"], "rollout": pool["template"]["spec"]}
    (container,) = pods["rollout"]["containers"]
    container["resources"]["limits"] = {"memory": job.memory_limit}
    for pod in pods.values():
        # What a node takes with it should come up elsewhere soon, not after Kubernetes' five
        # minutes.
        pod["tolerations"] = _TOLERATIONS
    pods["trainer"]["terminationGracePeriodSeconds"] = 5
    if node:
        pods["rollout"]["nodeSelector"] = {_HOSTNAME: node}
        pods["trainer"]["affinity"] = _preferably_not_on(node)
    spec["membership"] = {"suspectAfterMilliseconds": SUSPECT_AFTER_S * 1000}
    spec["failurePolicy"] = {"maxRestarts": 1000}
    if not weight_sync:
        spec["weightSync"] = {"enabled": False}
    return found


_HOSTNAME = "kubernetes.io/hostname"


def _preferably_not_on(node: str) -> dict[str, Any]:
    """So that another node has the trainer, whose loss then changes something."""
    elsewhere = {"key": _HOSTNAME, "operator": "NotIn", "values": [node]}
    term = {"weight": 100, "preference": {"matchExpressions": [elsewhere]}}
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}
