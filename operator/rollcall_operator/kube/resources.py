"""The kinds of objects that the operator reads or writes, and their URLs."""

from dataclasses import dataclass
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object: enough to build a URL and to read an object's own name for itself."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def group(self) -> str:
        """The API group; empty for the core."""
        return self.api_version.rpartition("/")[0]

    def path(
        self, *, namespace: str | None = None, name: str | None = None, subresource: str = ""
    ) -> str:
        """The URL's path of the collection or of one object."""
        root = "/apis/" if self.group else "/api/"
        parts = [root + self.api_version]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name is not None:
            parts.append(quote(name, safe=""))
        if subresource:
            parts.append(subresource)
        return "/".join(parts)


RL_JOBS = Resource("rollcall.dev/v1alpha1", "RLJob", "rljobs")
ROLLOUT_POOLS = Resource("rollcall.dev/v1alpha1", "RolloutPool", "rolloutpools")
PODS = Resource("v1", "Pod", "pods")
NODES = Resource("v1", "Node", "nodes", False)
SERVICES = Resource("v1", "Service", "services")
SECRETS = Resource("v1", "Secret", "secrets")
CONFIG_MAPS = Resource("v1", "ConfigMap", "configmaps")
SERVICE_ACCOUNTS = Resource("v1", "ServiceAccount", "serviceaccounts")
STATEFUL_SETS = Resource("apps/v1", "StatefulSet", "statefulsets")
DEPLOYMENTS = Resource("apps/v1", "Deployment", "deployments")
NETWORK_POLICIES = Resource("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
LEASES = Resource("coordination.k8s.io/v1", "Lease", "leases")
EVENTS = Resource("events.k8s.io/v1", "Event", "events")

_WRITTEN = {
    resource.kind: resource
    for resource in (
        RL_JOBS,
        ROLLOUT_POOLS,
        SERVICES,
        CONFIG_MAPS,
        STATEFUL_SETS,
        DEPLOYMENTS,
        NETWORK_POLICIES,
    )
}


def resource_of(kind: str) -> Resource:
    """The resource of a kind that a plan may write; raises KeyError for any other."""
    return _WRITTEN[kind]
