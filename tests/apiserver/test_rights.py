"""Least rights: the operator needs each right that the chart gives it, and has no other."""

import copy
from pathlib import Path

import pytest

from rollcall_operator.kube.client import Object
from rollcall_operator.kube.resources import LEASES, RL_JOBS, ROLLOUT_POOLS
from rollcall_protocol.wire.job_snapshot import MemberState
from tests.apiserver.access_review import Access, granted, is_allowed, used
from tests.apiserver.cluster import Cluster, rendered
from tests.apiserver.cluster_user import (
    ACCOUNT,
    QUOTAS,
    SYSTEM,
    USER,
    ClusterUser,
    eventually,
    example,
    open_user,
    service_account_kubeconfig,
)
from tests.apiserver.coordinator import Member
from tests.apiserver.kubelet import kubelet, rollouts
from tests.apiserver.operator_process import OperatorProcess

DECISION = "authorization.k8s.io/decision"
"""An annotation of audit events; admission can still forbid what is allowed."""
ROLLCALL, APPS, RBAC = "rollcall.dev", "apps", "rbac.authorization.k8s.io"

NOT_SEEN_IN_REQUESTS = {
    # Checked by an admission plugin of the API server, which runs with it, in other requests.
    Access("update", "rljobs/finalizers", ROLLCALL),
    Access("update", "rolloutpools/finalizers", ROLLCALL),
    # An event that repeats within minutes is counted in the first one.
    Access("patch", "events", "events.k8s.io"),
}

EVERYWHERE_REFUSED = (
    *(Access(verb, "secrets") for verb in ("get", "list", "watch", "update", "patch", "delete")),
    *(Access("list", kind) for kind in ("serviceaccounts", "namespaces", "*")),
    *(Access("get", kind) for kind in ("configmaps", "services")),
    *(Access("delete", kind) for kind in ("configmaps", "nodes", "persistentvolumeclaims")),
    *(
        Access("create", f"pods/{subresource}")
        for subresource in ("exec", "attach", "portforward", "eviction")
    ),
    *(Access(verb, "pods") for verb in ("create", "update", "deletecollection")),
    *(Access("get", f"pods/{part}") for part in ("log", "proxy")),
    *(Access(verb, "nodes") for verb in ("patch", "update")),
    Access("get", "nodes/proxy"),
    Access("create", "serviceaccounts/token"),
    Access("create", "serviceaccounts"),
    Access("impersonate", "users"),
    Access("impersonate", "serviceaccounts"),
    *(Access(verb, "rljobs", ROLLCALL) for verb in ("create", "update", "patch")),
    Access("delete", "statefulsets", APPS),
    Access("create", "daemonsets", APPS),
    Access("create", "jobs", "batch"),
    *(Access(verb, "clusterroles", RBAC) for verb in ("bind", "escalate", "create", "patch")),
    *(Access(verb, "roles", RBAC) for verb in ("bind", "escalate", "create", "patch")),
    Access("create", "clusterrolebindings", RBAC),
    Access("create", "rolebindings", RBAC),
    Access("patch", "customresourcedefinitions", "apiextensions.k8s.io"),
    Access("create", "mutatingwebhookconfigurations", "admissionregistration.k8s.io"),
    Access("approve", "signers", "certificates.k8s.io"),
    Access("*", "*", "*"),
)


# --- what it needs -------------------------------------------------------------------------------


def job() -> Object:
    """Two pools, a reference in pods of its own, and replacement at once."""
    made = example(membership={"settleSeconds": 0, "replaceAfterSeconds": 1})
    spec = made["spec"]
    spec["algorithm"]["settings"] = {"klCoefficient": "0.1"}
    template = copy.deepcopy(spec["trainer"]["template"])
    template["spec"]["containers"][0]["name"] = "reference"
    spec["reference"] = {"template": template}
    spec["rollouts"].append({**spec["rollouts"][0], "name": "more", "replicas": 1})
    return made


async def test_all_that_it_asks_for_is_allowed_and_every_right_is_needed(
    user: ClusterUser, cluster: Cluster, log_folder: Path
) -> None:
    await user.client.delete(LEASES, namespace=SYSTEM, name=ACCOUNT)  # of other tests' operators
    before = len(cluster.control.requests(user=USER))
    flags = ("--reach", "direct", "--lease-duration", "6")
    log = log_folder / "log"
    with OperatorProcess(kubeconfig=cluster.operator, log=log, flags=flags) as operator:
        operator.wait_until_watching()
        await serve_a_job_and_shrink_it(user)
        await delete_a_finished_job_without_pods(user)
        operator.assert_healthy()
        assert operator.terminate() == 0
    requests = cluster.control.requests(user=USER)[before:]
    assert {r["annotations"][DECISION] for r in requests} == {"allow"}
    rights = granted(rendered())
    assert rights - used(requests) <= NOT_SEEN_IN_REQUESTS <= rights


async def serve_a_job_and_shrink_it(user: ClusterUser) -> None:
    """Apply, run, replace a rollout, scale down, suspend, take away a pool and the reference."""
    async with kubelet(user) as node:
        body = job()
        await user.apply(body)
        pods = await rollouts(user, 3)
        suspect = next(iter(pods))
        node.coordinator.say({suspect: Member(MemberState.SUSPECT, "silent")})

        async def replaced() -> bool:
            return suspect not in await rollouts(user, 3)

        await eventually(replaced, "another rollout instead of the suspect")
        user.kubectl("scale", "rolloutpool/reverse-cpu", "--replicas=1")
        await rollouts(user, 2)
        body["spec"]["suspend"] = True
        await user.apply(body)
        body["spec"]["rollouts"].pop()
        del body["spec"]["reference"]
        await user.apply(body)

        async def smaller() -> bool:
            pools = await user.listed(ROLLOUT_POOLS)
            return len(pools) == 1 and not [
                name for name in await user.children("reverse") if name.endswith("-reference")
            ]

        await eventually(smaller, "one pool, no reference")


async def delete_a_finished_job_without_pods(user: ClusterUser) -> None:
    """A job whose pods a quota refuses, so that events are read, until its deadline has passed."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}}
    await user.apply(quota | {"spec": {"hard": {"pods": "0"}}})

    async def in_force() -> bool:
        return "used" in ((await user.get(QUOTAS, "none")).get("status") or {})

    await eventually(in_force, "the quota in force")
    await user.apply(example("short", activeDeadlineSeconds=12, ttlSecondsAfterFinished=0))

    async def deleted() -> bool:
        return await user.find(RL_JOBS, "short") is None

    await eventually(deleted, "the finished job is deleted")


# --- what it has not -----------------------------------------------------------------------------


@pytest.mark.parametrize("access", EVERYWHERE_REFUSED, ids=str)
async def test_it_may_not(user: ClusterUser, access: Access) -> None:
    for namespace in ("", user.namespace, SYSTEM, "kube-system"):
        assert not await is_allowed(user, access, namespace=namespace)


async def test_it_makes_tokens_of_its_own_account_alone(user: ClusterUser) -> None:
    make = Access("create", "serviceaccounts/token")
    assert await is_allowed(user, make, namespace=SYSTEM, name=ACCOUNT)
    assert not await is_allowed(user, make, namespace=SYSTEM, name="default")
    assert not await is_allowed(user, make, namespace=user.namespace, name=ACCOUNT)


async def test_it_writes_its_own_lease_alone(user: ClusterUser) -> None:
    write = Access("update", "leases", "coordination.k8s.io")
    assert await is_allowed(user, write, namespace=SYSTEM, name=ACCOUNT)
    assert not await is_allowed(user, write, namespace=SYSTEM, name="another")
    assert not await is_allowed(user, write, namespace="kube-system", name=ACCOUNT)


# --- in some namespaces only ---------------------------------------------------------------------


async def test_a_namespaced_install_has_its_rights_in_its_namespaces_alone(
    cluster: Cluster, user: ClusterUser, log_folder: Path
) -> None:
    release = "alone-rollcall-operator"
    flags = ("--set", f"namespaces={{{user.namespace}}}", "--set", "crds.install=false")
    objects = rendered(*flags, release=release)
    assert not {"ClusterRole", "ClusterRoleBinding"} & {body["kind"] for body in objects}
    (deployment,) = (body for body in objects if body["kind"] == "Deployment")
    assert f"--namespace={user.namespace}" in str(deployment)
    for body in objects:
        if body["kind"] not in {"Deployment", "Service"}:
            await user.apply(body)
    (role,) = (
        body
        for body in objects
        if body["metadata"].get("namespace") == user.namespace and body["kind"] == "Role"
    )
    for access in granted([role]):
        where = {"namespace": user.namespace, "name": "any"}
        assert await is_allowed(user, access, account=release, **where), access
        for elsewhere in ("", SYSTEM, "kube-system"):
            if elsewhere == SYSTEM and access == Access("create", "secrets"):
                continue  # where its own authority is kept
            where["namespace"] = elsewhere
            assert not await is_allowed(user, access, account=release, **where), access
    for verb in ("get", "list", "watch"):
        assert not await is_allowed(user, Access(verb, "nodes"), account=release)
    await serves_its_namespace_alone(cluster, user, log_folder, account=release)


async def serves_its_namespace_alone(
    cluster: Cluster, user: ClusterUser, folder: Path, *, account: str
) -> None:
    """An operator with the rights of this account brings a job's rollouts to Ready."""
    kubeconfig = folder / "kubeconfig"
    kubeconfig.touch(mode=0o600)
    kubeconfig.write_text(
        service_account_kubeconfig(
            user,
            server=cluster.control.server,
            certificate=cluster.control.certificate,
            account=account,
        )
    )
    lease = ("--lease-namespace", SYSTEM, "--lease-name", account)
    flags = ("--namespace", user.namespace, "--reach", "direct", *lease)
    async with (
        open_user(cluster.admin, namespace=f"{user.namespace}-other") as other,
        kubelet(user),
    ):
        with OperatorProcess(kubeconfig=kubeconfig, log=folder / "log", flags=flags) as operator:
            operator.wait_until_watching()
            await other.apply(example())
            await user.apply(example(membership={"settleSeconds": 0}))
            await rollouts(user, 2)
            operator.assert_healthy()
            assert sum("Nodes are not watched" in line["message"] for line in operator.lines()) == 1
            assert operator.terminate() == 0
        assert not await other.children("reverse")
