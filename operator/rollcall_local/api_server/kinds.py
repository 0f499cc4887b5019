"""The kinds that are served, and what the API server does for each.

A kind with a status has it written on its own: a write of the object leaves it, and the reverse.
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
    """A kind of object. `kept`: whether it is still there after a restart of the machine."""

    resource: Resource
    has_status: bool = False
    has_scale: bool = False
    kept: bool = True


KINDS = {
    kind.resource.plural: kind
    for kind in (
        Kind(RL_JOBS, has_status=True),
        Kind(ROLLOUT_POOLS, has_status=True, has_scale=True),
        Kind(PODS, has_status=True, kept=False),
        Kind(NODES, has_status=True, kept=False),
        Kind(SERVICES),
        Kind(SECRETS),
        Kind(CONFIG_MAPS),
        Kind(SERVICE_ACCOUNTS),
        Kind(CLAIMS),
        Kind(NAMESPACES),
        Kind(STATEFUL_SETS, has_status=True, has_scale=True),
        Kind(DEPLOYMENTS, has_status=True, has_scale=True),
        Kind(NETWORK_POLICIES),
        Kind(LEASES, kept=False),
        Kind(EVENTS),
    )
}
"""By the plural name in URLs."""
