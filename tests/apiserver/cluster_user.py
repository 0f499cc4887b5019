"""What integration tests do to a cluster as its users: apply, edit, read, wait."""

import asyncio
import contextlib
import copy
import json
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from hack.cluster import go_build
from rollcall_operator.control import job_store
from rollcall_operator.kube.client import KubeClient, Object
from rollcall_operator.kube.connection import connect
from rollcall_operator.kube.errors import NotFoundError
from rollcall_operator.kube.resources import (
    EVENTS,
    PODS,
    RL_JOBS,
    ROLLOUT_POOLS,
    Resource,
)
from rollcall_operator.kube.transport import APPLY_PATCH, Transport

if TYPE_CHECKING:
    from tests.apiserver.cluster import Cluster

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
CHILDREN = (*job_store.CHILDREN, ROLLOUT_POOLS)
SYSTEM = "rollcall-system"
ACCOUNT = "rollcall-operator"
USER = f"system:serviceaccount:{SYSTEM}:{ACCOUNT}"

COLLECTION = 60.0
"""Seconds: the garbage collector learns of a new kind of owner only every half minute."""

NAMESPACES = Resource("v1", "Namespace", "namespaces", False)
_ADMISSION = "admissionregistration.k8s.io/v1"
ADMISSION_POLICIES = Resource(
    _ADMISSION, "ValidatingAdmissionPolicy", "validatingadmissionpolicies", False
)
ADMISSION_BINDINGS = Resource(
    _ADMISSION, "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", False
)
QUOTAS = Resource("v1", "ResourceQuota", "resourcequotas")
_KINDS = {
    resource.kind: resource
    for resource in (
        RL_JOBS,
        *CHILDREN,
        PODS,
        NAMESPACES,
        Resource("v1", "ServiceAccount", "serviceaccounts"),
        QUOTAS,
        Resource("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles", False),
        Resource(
            "rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "clusterrolebindings", False
        ),
        Resource("rbac.authorization.k8s.io/v1", "Role", "roles"),
        Resource("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings"),
        ADMISSION_POLICIES,
        ADMISSION_BINDINGS,
        Resource(
            "apiextensions.k8s.io/v1",
            "CustomResourceDefinition",
            "customresourcedefinitions",
            False,
        ),
    )
}


def example(name: str = "reverse", *, replicas: int = 2, **spec: Any) -> Object:
    """The job of examples/reverse.yaml under another name."""
    job: Object = yaml.safe_load((ROOT / "examples" / "reverse.yaml").read_text())
    job["metadata"]["name"] = name
    job["spec"]["rollouts"][0]["replicas"] = replicas
    job["spec"].update(spec)
    return job


def extra_pool(job: str, *, name: str = "lent", replicas: int = 1) -> Object:
    """A pool that a user applies without a job."""
    template = copy.deepcopy(example()["spec"]["rollouts"][0]["template"])
    return {
        "apiVersion": "rollcall.dev/v1alpha1",
        "kind": "RolloutPool",
        "metadata": {"name": name},
        "spec": {
            "jobRef": {"name": job},
            "replicas": replicas,
            "engine": {"name": "tiny"},
            "template": template,
        },
    }


class ClusterUser:
    """One namespace of a real cluster, seen by its administrator."""

    def __init__(self, client: KubeClient, *, namespace: str, kubeconfig: Path) -> None:
        self.client = client
        self.namespace = namespace
        self.kubeconfig = kubeconfig

    async def apply(self, manifest: Object, *, force: bool = True, dry_run: bool = False) -> Object:
        """What `kubectl apply --server-side` does; raises RefusedError."""
        resource = _KINDS[manifest["kind"]]
        body = copy.deepcopy(manifest)
        if resource.namespaced:
            body["metadata"].setdefault("namespace", self.namespace)
        metadata = body["metadata"]
        return await self.client.transport.request(
            "PATCH",
            resource.path(namespace=metadata.get("namespace"), name=metadata["name"]),
            verb="apply",
            plural=resource.plural,
            query={
                "fieldManager": "a-user",
                "fieldValidation": "Strict",
                "force": str(force).lower(),
                **({"dryRun": "All"} if dry_run else {}),
            },
            body=body,
            content_type=APPLY_PATCH,
        )

    async def get(self, resource: Resource, name: str) -> Object:
        """One object; raises NotFoundError."""
        return await self.client.get(resource, namespace=self.namespace, name=name)

    async def find(self, resource: Resource, name: str) -> Object | None:
        """One object, None when it is not there."""
        return await self.client.find(resource, namespace=self.namespace, name=name)

    async def edit(self, resource: Resource, name: str, patch: Object) -> Object:
        """What `kubectl patch --type=merge` does."""
        return await self.client.merge(resource, namespace=self.namespace, name=name, patch=patch)

    async def delete(self, resource: Resource, name: str) -> None:
        """Delete in the background."""
        await self.client.delete(resource, namespace=self.namespace, name=name)

    async def listed(self, resource: Resource, labels: str = "") -> tuple[Object, ...]:
        """Objects of the namespace."""
        return await self.client.list(resource, namespace=self.namespace, labels=labels)

    async def children(self, job: str) -> dict[str, Object]:
        """What is there of a job, by kind and name."""
        found = {}
        for resource in CHILDREN:
            for item in await self.listed(resource, f"rollcall.dev/job={job}"):
                found[f"{resource.kind}/{item['metadata']['name']}"] = item
        return found

    async def events(self, name: str, reason: str) -> list[Object]:
        """Events of this reason about an object of this name."""
        listed = await self.listed(EVENTS)
        return [e for e in listed if e["regarding"].get("name") == name and e["reason"] == reason]

    async def condition(self, resource: Resource, name: str, type_: str) -> Object | None:
        """One condition of an object."""
        found = await self.find(resource, name)
        conditions = ((found or {}).get("status") or {}).get("conditions") or ()
        return next((c for c in conditions if c["type"] == type_), None)

    async def bind(self, pod: str, *, node: str | None = None) -> None:
        """What a scheduler does: the pod gets a node, by default one that does not exist.

        Kubernetes deletes all pods of a missing node some 40 s after it saw the first of them, so
        each namespace has one of its own.
        """
        node = node or f"missing-{self.namespace}"
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        await self.client.transport.request(
            "POST",
            PODS.path(namespace=self.namespace, name=pod, subresource="binding"),
            verb="create",
            plural=PODS.plural,
            body={
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": pod},
                "target": target,
            },
        )

    def kubectl(self, *arguments: str, body: Object | None = None) -> str:
        """Run the real kubectl, which reads `body` as its standard input."""
        program = go_build.programs(["kubectl"])["kubectl"]
        done = subprocess.run(
            [program, "--kubeconfig", self.kubeconfig, "--namespace", self.namespace, *arguments],
            input=None if body is None else json.dumps(body),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextlib.asynccontextmanager
async def open_user(
    kubeconfig: Path, *, namespace: str, keep: bool = False
) -> AsyncIterator[ClusterUser]:
    """A user in `namespace`, which is made if it is not there, and removed at the end or kept."""
    connection = await connect(kubeconfig=str(kubeconfig))
    try:
        client = KubeClient(Transport(connection))
        user = ClusterUser(client, namespace=namespace, kubeconfig=kubeconfig)
        await user.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        yield user
        if not keep:
            await client.delete(NAMESPACES, namespace=None, name=namespace)
    finally:
        await connection.close()


async def eventually(
    check: Callable[[], Awaitable[T | None]], what: str, *, seconds: float = 30.0
) -> T:
    """Ask until the answer is neither None nor False; raises AssertionError after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(NotFoundError):
            answer = await check()
            if answer is not None and answer is not False:
                return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:.0f} s: {what}")
        await asyncio.sleep(0.05)


async def quiet(count: Callable[[], int], *, seconds: float = 1.0) -> None:
    """Wait until a count has stood still for `seconds`."""
    last, since = count(), time.monotonic()
    deadline = since + seconds + 60.0
    while time.monotonic() - since < seconds:
        assert time.monotonic() < deadline, f"still counting: {last}"
        await asyncio.sleep(0.05)
        if (now := count()) != last:
            last, since = now, time.monotonic()


async def all_children(
    user: ClusterUser, job: str = "reverse", *, pools: int = 1
) -> dict[str, Object]:
    """Wait for a job's ConfigMap, Service, StatefulSet, pools, Deployments, NetworkPolicies."""

    async def there() -> dict[str, Object] | None:
        found = await user.children(job)
        return found if len(found) == 5 + 2 * pools else None

    return await eventually(there, f"the children of {job}")


def operator_writes(events: list[dict[str, Any]], *, namespace: str = "") -> list[str]:
    """The operator's writes in an audit log, as short texts: not its Lease, events and tokens."""
    found = []
    for event in events:
        about = event.get("objectRef") or {}
        if about.get("resource") in {"leases", "events", "serviceaccounts"}:
            continue
        if namespace and about.get("namespace") != namespace:
            continue
        what = "/".join(
            part
            for part in (about.get("resource"), about.get("name"), about.get("subresource"))
            if part
        )
        found.append(f"{event['verb']} {what} {event['responseStatus']['code']}")
    return found


async def writes_settled(
    user: ClusterUser, cluster: "Cluster", *, seconds: float = 1.0
) -> list[str]:
    """The operator's writes in the user's namespace, once there were no more for `seconds`."""

    def writes() -> list[str]:
        return operator_writes(cluster.writes(), namespace=user.namespace)

    await quiet(lambda: len(writes()), seconds=seconds)
    return writes()


def service_account_kubeconfig(
    user: ClusterUser, *, server: str, certificate: Path, account: str = ACCOUNT
) -> str:
    """A kubeconfig of the operator's service account, with a token from the API server."""
    token = user.kubectl("create", "token", account, "-n", SYSTEM, "--duration", "2h").strip()
    return kubeconfig(token, {"server": server, "certificate-authority": str(certificate)})


def kubeconfig(token: str, cluster: dict[str, str]) -> str:
    """The text of one with this token for this cluster."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [
                {"name": "c", "context": {"cluster": "c", "user": "u", "namespace": SYSTEM}}
            ],
            "current-context": "c",
        }
    )
