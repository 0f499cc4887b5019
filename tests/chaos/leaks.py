"""What is left of a deleted job: in the API, on the machine, and in the nodes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.chaos import host
from tests.chaos.history import Leftovers
from tests.e2e.kubectl import Kubectl, name_of

if TYPE_CHECKING:
    from collections.abc import Collection

KINDS = (
    "rljobs", "rolloutpools", "statefulsets", "deployments", "replicasets", "controllerrevisions",
    "pods", "services", "endpointslices", "secrets", "configmaps", "leases", "poddisruptionbudgets",
)  # fmt: skip
GONE_S = 120.0
_OF_EVERY_NAMESPACE = ("kube-root-ca.crt",)


def wait_until_gone(
    kubectl: Kubectl, *, uids: Collection[str], networks: Collection[str], shared: Collection[str]
) -> Leftovers:
    """Look until nothing is left or the time is up; what is left then was leaked.

    Args:
        kubectl: in the job's namespace.
        uids: of all pods that the job ever had.
        networks: their network namespaces.
        shared: what lay in shared memory before the job began.
    """
    deadline = time.monotonic() + GONE_S
    while True:
        found = look(kubectl, uids=uids, networks=networks, shared=shared)
        if found == Leftovers() or time.monotonic() > deadline:
            return found
        time.sleep(2)


def look(
    kubectl: Kubectl, *, uids: Collection[str], networks: Collection[str], shared: Collection[str]
) -> Leftovers:
    """Look once."""
    pods = sorted(uids)
    nodes = [pid for name in host.ALL_NODES if (pid := host.node_pid(name))]
    items = kubectl.items(",".join(KINDS))
    objects = [f"{item['kind']}/{name_of(item)}" for item in items]
    kept = set().union(*(host.network_namespaces(node) for node in nodes))
    mounts = [mount for node in nodes for mount in host.mounts_with(node, pods)]
    return Leftovers(
        objects=tuple(
            name for name in objects if name.rpartition("/")[2] not in _OF_EVERY_NAMESPACE
        ),
        processes=tuple(host.processes_of_pods(pods)),
        namespaces=tuple(sorted(kept & set(networks))),
        shared_memory=tuple(sorted(host.shared_memory(nodes) - set(shared))),
        mounts=(*mounts, *host.control_groups_with(pods)),
    )
