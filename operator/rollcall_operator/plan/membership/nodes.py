"""Nodes that are about to go, or are gone: what becomes of the job's pods on them.

A rollout leaves a node that will be preempted at once: it is deleted, which drains it and makes
another elsewhere. A trainer stays until the end, since moving it costs a restart in any case.
"""

from collections.abc import Collection, Iterable

from rollcall_operator.api import labels
from rollcall_operator.plan.job_view import JobView
from rollcall_operator.plan.model import Manifest, NodeFacts, PodDeletion, PodFacts, Taint

# Who puts them: AWS's termination handler (spot interruption, maintenance, end of a scaling group's
# instance), GKE, Karpenter, the cluster autoscaler, AKS's node auto-drain. Left out are those that
# only say what kind of node it is, or that it might go some day.
PREEMPTION_TAINTS = (
    "aws-node-termination-handler/spot-itn",
    "aws-node-termination-handler/scheduled-maintenance",
    "aws-node-termination-handler/asg-lifecycle-termination",
    "cloud.google.com/impending-node-termination",
    "karpenter.sh/disrupted",
    "ToBeDeletedByClusterAutoscaler",
    "remediator.kubernetes.azure.com/unschedulable",
)
_KEEPS_OUT = {"NoSchedule", "NoExecute"}
_SLACK = 1.0
"""Seconds beyond a pod's grace, as the API server's times are whole seconds."""


def node_facts(node: Manifest, keys: Collection[str]) -> NodeFacts | None:
    """What is wrong with a node, None if nothing is. `keys`: of taints that tell of its end.

    Only taints that keep new pods out count: else a pod's successor could land there again.
    """
    name = node["metadata"]["name"]
    taints = (node.get("spec") or {}).get("taints") or ()
    preempted = tuple(
        Taint(taint["key"], taint.get("value", ""), taint["effect"])
        for taint in taints
        if taint["key"] in keys and taint["effect"] in _KEEPS_OUT
    )
    conditions = (node.get("status") or {}).get("conditions") or ()
    lost = any(c["type"] == "Ready" and c["status"] == "Unknown" for c in conditions)
    return NodeFacts(name, preempted, lost) if preempted or lost else None


def preempted_rollouts(view: JobView) -> Iterable[tuple[PodFacts, Taint]]:
    """Rollouts that must leave their node, and why. One that tolerates the taint may stay."""
    for pool in view.pools:
        for pod in pool.pods:
            taint = _end_of(view, pod)
            if taint is not None:
                yield pod, taint


def preempted_trainers(view: JobView) -> Iterable[tuple[PodFacts, Taint]]:
    """Trainer pods on a node that will be gone."""
    for pod in view.trainers:
        taint = _end_of(view, pod)
        if taint is not None:
            yield pod, taint


def stranded_trainers(view: JobView) -> Iterable[tuple[PodFacts, float]]:
    """Trainer pods that end on a lost node, each with the seconds until nobody waits any longer.

    A StatefulSet makes no other pod of that name while the record of this one is there, and only
    its kubelet would remove that. Should the pod still run, out of reach: it commands nobody who
    has heard of its successor, as rosters name the coordinator by its pod's uid.
    """
    for pod in view.observed.pods:
        node = view.observed.nodes.get(pod.node)
        ours = pod.role == labels.TRAINER and pod.job_uid == view.uid
        if ours and pod.leaves_by is not None and node is not None and node.lost:
            yield pod, max(0.0, pod.leaves_by + _SLACK - view.now)


def forced(pod: PodFacts) -> PodDeletion:
    """Strike a pod off the record."""
    return PodDeletion(pod=pod.name, uid=pod.uid, force=True)


def _end_of(view: JobView, pod: PodFacts) -> Taint | None:
    node = view.observed.nodes.get(pod.node)
    for taint in node.preempted if node else ():
        if not any(toleration.covers(taint) for toleration in pod.tolerations):
            return taint
    return None
