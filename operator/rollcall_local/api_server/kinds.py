"""The kinds that are served, and what the API server does for each.

A status is written on its own: a write of the object leaves it, and the reverse.
"""

from dataclasses import dataclass

from rollcall_operator.kube.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    EVENTS,
    LEASES,
    NETWORK_POLICIES,
    NODES,
    PODS,
    RL_JOBS,
    ROLLOUT_POOLS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    STATEFUL_SETS,
    Resource,
)

CLAIMS = Resource("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
NAMESPACES = Resource("v1", "Namespace", "namespaces", namespaced=False)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object; `short` is its short name for kubectl.

    `kept`: whether it is still there after a restart of the machine. `most`: objects; the oldest
    makes room for one more. 0: as many as there are.
    """

    resource: Resource
    short: str = ""
    has_status: bool = False
    has_scale: bool = False
    kept: bool = True
    most: int = 0


KINDS = {
    kind.resource.plural: kind
    for kind in (
        Kind(RL_JOBS, "rlj", has_status=True),
        Kind(ROLLOUT_POOLS, "rpool", has_status=True, has_scale=True),
        Kind(PODS, "po", has_status=True, kept=False),
        Kind(NODES, "no", has_status=True, kept=False),
        Kind(SERVICES, "svc"),
        Kind(SECRETS),
        Kind(CONFIG_MAPS, "cm"),
        Kind(SERVICE_ACCOUNTS, "sa"),
        Kind(CLAIMS, "pvc"),
        Kind(NAMESPACES, "ns"),
        Kind(STATEFUL_SETS, "sts", has_status=True, has_scale=True),
        Kind(DEPLOYMENTS, "deploy", has_status=True, has_scale=True),
        Kind(NETWORK_POLICIES, "netpol"),
        Kind(LEASES, kept=False),
        Kind(EVENTS, "ev", most=1000),
    )
}
"""By the plural name in URLs."""
