"""Nodes that will terminate or do not respond, and what happens to the job's pods on them.

A rollout leaves a node that will terminate at once: it is deleted, which drains it and has another
started elsewhere. A trainer stays until the end, since moving it costs a restart in any case.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from rollcall_operator.plan.model import Manifest, NodeFacts, PodFacts, Taint

# Set by: AWS's termination handler (spot interruption, maintenance, end of a scaling group's
# instance), GKE, Karpenter, the cluster autoscaler, AKS's node auto-drain. Taints that only name
# the kind of node, such as "spot", are left out.
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
"""Seconds added to a pod's grace period, as the API server's times are whole seconds."""


def node_facts(node: Manifest, keys: Collection[str]) -> NodeFacts | None:
    """What is wrong with a node, None if nothing is. `keys`: of taints that announce its end.

    Only taints that keep new pods out count: otherwise a pod's successor could be scheduled there.
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


def pods_on_terminating_nodes(
    pods: Iterable[PodFacts], nodes: Mapping[str, NodeFacts]
) -> Iterator[tuple[PodFacts, Taint]]:
    """Pods whose node (in `nodes`, by name) will terminate, and the first taint that says so.

    A pod that tolerates the taint may stay, and is left out.
    """
    for pod in pods:
        node = nodes.get(pod.node)
        for taint in node.preempted if node else ():
            if not any(toleration.covers(taint) for toleration in pod.tolerations):
                yield pod, taint
                break


def trainers_stuck_on_lost_nodes(
    trainers: Iterable[PodFacts], nodes: Mapping[str, NodeFacts], *, now: float
) -> Iterator[tuple[PodFacts, float]]:
    """Trainer pods that terminate on a lost node, each with seconds until it is force-deleted.

    A StatefulSet creates no pod of a name while the old one's object exists, and only the lost
    node's kubelet would remove that. Should the old pod still run out there, it has no power over
    members that know its successor: rosters name the coordinator by its pod's uid.
    """
    for pod in trainers:
        node = nodes.get(pod.node)
        if pod.leaves_by is not None and node is not None and node.lost:
            yield pod, max(0.0, pod.leaves_by + _SLACK - now)
