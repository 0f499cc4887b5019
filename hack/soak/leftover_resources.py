"""What is left of a deleted job: in the API, on the machine, and in the nodes."""

from __future__ import annotations

import time
from dataclasses import dataclass

from hack.cluster.kubectl import Kubectl, name_of
from hack.soak import host_inspection
from hack.soak.soak_history import Leftovers

KINDS = (
    "rljobs",
    "rolloutpools",
    "statefulsets",
    "deployments",
    "replicasets",
    "controllerrevisions",
    "pods",
    "services",
    "endpointslices",
    "secrets",
    "configmaps",
    "leases",
    "poddisruptionbudgets",
)
GONE_S = 120.0
_OF_EVERY_NAMESPACE = ("kube-root-ca.crt",)


@dataclass(frozen=True, slots=True)
class JobTraces:
    """By what a job's leftovers are known: the uids of all pods that it ever had, their network
    namespaces, and what lay in shared memory before it began.
    """

    uids: frozenset[str]
    networks: frozenset[str]
    shared: set[str]


def wait_until_gone(kubectl: Kubectl, trace: JobTraces) -> Leftovers:
    """Look until nothing is left or the time is up; what is left then was leaked."""
    deadline = time.monotonic() + GONE_S
    while True:
        found = look(kubectl, trace)
        if found == Leftovers() or time.monotonic() > deadline:
            return found
        time.sleep(2)


def look(kubectl: Kubectl, trace: JobTraces) -> Leftovers:
    """Look once, in kubectl's namespace, on the machine, and in the nodes."""
    pods = sorted(trace.uids)
    nodes = [pid for name in host_inspection.ALL_NODES if (pid := host_inspection.node_pid(name))]
    items = kubectl.items(",".join(KINDS))
    objects = [f"{item['kind']}/{name_of(item)}" for item in items]
    kept = set().union(*(host_inspection.network_namespaces(node) for node in nodes))
    mounts = [mount for node in nodes for mount in host_inspection.mounts_with(node, pods)]
    return Leftovers(
        objects=tuple(
            name for name in objects if name.rpartition("/")[2] not in _OF_EVERY_NAMESPACE
        ),
        processes=tuple(host_inspection.processes_of_pods(pods)),
        namespaces=tuple(sorted(kept & trace.networks)),
        shared_memory=tuple(sorted(host_inspection.shared_memory(nodes) - trace.shared)),
        mounts=(*mounts, *host_inspection.control_groups_with(pods)),
    )
