"""The chart gives the operator what it needs and no more: flags, ports, probes, account, rights.

Helm alone is needed, and the chart is rendered once for each way to install it.
"""

from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from rollcall_operator import app, cli, config
from rollcall_operator.api import labels
from rollcall_operator.api.crd import RESOURCES, crd
from rollcall_operator.control.job_store import CHILDREN, KINDS
from rollcall_operator.kube.resources import (
    EVENTS,
    LEASES,
    NODES,
    PODS,
    RL_JOBS,
    ROLLOUT_POOLS,
    SECRETS,
    SERVICE_ACCOUNTS,
    Resource,
)
from rollcall_operator.telemetry.metrics import OperatorMetrics
from rollcall_operator.telemetry.probes import ProbeServer
from rollcall_protocol import pod_contract
from tests.apiserver.access_review import Access, granted
from tests.apiserver.cluster import rendered
from tests.apiserver.cluster_user import ACCOUNT, SYSTEM

Objects = list[dict[str, Any]]

EVERYWHERE, ONE_NAMESPACE = (), ("--set", "namespaces={team}")
ALL_EXTRAS = (
    *("--set", "serviceMonitor.enabled=true", "--set", "podMonitor.enabled=true"),
    *("--set", "networkPolicy.enabled=true"),
)


@pytest.fixture(scope="module", params=[EVERYWHERE, ONE_NAMESPACE], ids=["everywhere", "namespace"])
def objects(request: pytest.FixtureRequest) -> Objects:
    """The chart's objects, with its own policy and both monitors."""
    return rendered(*ALL_EXTRAS, *request.param)


def one(objects: Objects, kind: str) -> Any:
    (found,) = (body for body in objects if body["kind"] == kind)
    return found


def pod(objects: Objects) -> Any:
    return one(objects, "Deployment")["spec"]["template"]["spec"]


def container(objects: Objects) -> Any:
    (only,) = pod(objects)["containers"]
    return only


def settings(objects: Objects) -> config.Settings:
    """As the operator reads its flags."""
    return config.from_arguments(cli.parser().parse_args(container(objects)["args"]), environ={})


# --- flags ---------------------------------------------------------------------------------------


def test_the_operator_knows_all_flags_and_finds_its_own_lease(objects: Objects) -> None:
    read = settings(objects)
    assert (read.lease_namespace, read.lease_name) == (SYSTEM, ACCOUNT)
    assert (read.leader_elect, read.lease_duration) == (True, 15)
    assert (read.workers, read.log_level, read.log_format) == (10, "info", "json")


def test_the_pod_has_time_for_its_last_reconciles(objects: Objects) -> None:
    longest = settings(objects).drain + app._HARD_EXIT_SECONDS
    assert pod(objects)["terminationGracePeriodSeconds"] > longest


# --- ports ---------------------------------------------------------------------------------------


def test_every_port_is_the_one_at_which_the_operator_listens(objects: Objects) -> None:
    named = {port["name"]: port["containerPort"] for port in container(objects)["ports"]}
    (service,) = one(objects, "Service")["spec"]["ports"]
    (monitored,) = one(objects, "ServiceMonitor")["spec"]["endpoints"]
    (allowed,) = one(objects, "NetworkPolicy")["spec"]["ingress"]
    (open_port,) = allowed["ports"]
    probes = [container(objects)[probe] for probe in ("livenessProbe", "readinessProbe")]
    leading = [service["targetPort"], open_port["port"], *(p["httpGet"]["port"] for p in probes)]
    assert {named.get(port, port) for port in leading} == {settings(objects).http_port}
    assert monitored["port"] == service["name"]
    assert service["port"] == 8080


def test_workers_are_scraped_at_their_port_and_by_their_labels(objects: Objects) -> None:
    monitor = one(objects, "PodMonitor")["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    (kept,) = (rule for rule in endpoint["relabelings"] if rule["action"] == "keep")
    assert (endpoint["path"], kept["regex"]) == ("/metrics", str(pod_contract.METRICS_PORT))
    (roles,) = monitor["selector"]["matchExpressions"]
    workers = {labels.TRAINER, labels.ROLLOUT, labels.REFERENCE, labels.FRONT}
    assert (roles["key"], set(roles["values"])) == (labels.ROLE, workers)
    assert monitor["selector"]["matchLabels"] == {labels.MANAGED_BY: labels.FIELD_MANAGER}


async def test_the_operator_answers_at_every_path_that_is_asked(objects: Objects) -> None:
    (monitored,) = one(objects, "ServiceMonitor")["spec"]["endpoints"]
    asked = {name: container(objects)[f"{name}Probe"]["httpGet"]["path"] for name in PROBES}
    assert asked == PROBES
    server = ProbeServer(metrics=OperatorMetrics(), live=lambda: "", ready=lambda: "")
    await server.start(host="127.0.0.1", port=0)
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as client:
            for path in (*asked.values(), monitored["path"]):
                async with client.get(path) as answer:
                    assert answer.status == 200, path
    finally:
        await server.close()


PROBES = {"liveness": "/healthz", "readiness": "/readyz"}


# --- the account and its rights ------------------------------------------------------------------


def test_every_right_is_bound_to_the_account_of_the_pod(objects: Objects) -> None:
    account = one(objects, "ServiceAccount")["metadata"]
    assert pod(objects)["serviceAccountName"] == account["name"] == ACCOUNT
    assert pod(objects)["automountServiceAccountToken"] is True
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": SYSTEM}
    bindings = [body for body in objects if body["kind"].endswith("RoleBinding")]
    assert all(binding["subjects"] == [subject] for binding in bindings)
    bound = {
        (role["kind"], binding["metadata"].get("namespace"), role["name"])
        for binding in bindings
        for role in (binding["roleRef"],)
    }
    roles = {
        (body["kind"], body["metadata"].get("namespace"), body["metadata"]["name"])
        for body in objects
        if body["kind"] in {"ClusterRole", "Role"} and not is_for_people(body)
    }
    assert bound == roles


def test_its_rights_are_those_of_which_it_makes_use_and_no_others(objects: Objects) -> None:
    whole_cluster = any(body["kind"] == "ClusterRoleBinding" for body in objects)
    nodes = allowed(NODES, "list", "watch") if whole_cluster else ()
    assert granted(objects) == {*needed(), *nodes}


def needed() -> Iterator[Access]:
    """test_rights.py compares the same with an audit log of the API server."""
    for kind in KINDS:
        yield from allowed(kind, "list", "watch")
    for kind in (ROLLOUT_POOLS, *CHILDREN):  # an apply
        yield from allowed(kind, "create", "patch")
    for kind in (RL_JOBS, ROLLOUT_POOLS, PODS, *(c for c in CHILDREN if c.plural in DELETED)):
        yield from allowed(kind, "delete")
    yield from allowed(PODS, "patch")  # deletion costs
    for kind in (RL_JOBS, ROLLOUT_POOLS, PODS):
        yield from allowed(kind, "patch", part="/status")
    for kind in (RL_JOBS, ROLLOUT_POOLS):
        yield from allowed(kind, "update", part="/finalizers")
    yield from allowed(EVENTS, "list", "create", "patch")
    yield from allowed(SECRETS, "create", "get")
    yield from allowed(SERVICE_ACCOUNTS, "create", part="/token")
    yield from allowed(LEASES, "create", "get", "update")


DELETED = {"deployments", "services", "networkpolicies"}  # what the spec no longer asks for


def allowed(resource: Resource, *verbs: str, part: str = "") -> Iterator[Access]:
    return (Access(verb, f"{resource.plural}{part}", resource.group) for verb in verbs)


def test_secrets_leases_and_tokens_are_its_own_alone(objects: Objects) -> None:
    read = settings(objects)
    own = {
        Access("get", "secrets"): f"{read.lease_name}-authority",
        Access("create", "serviceaccounts/token"): pod(objects)["serviceAccountName"],
        **dict.fromkeys(allowed(LEASES, "get", "update"), read.lease_name),
    }
    for body in (body for body in objects if body["kind"] in {"ClusterRole", "Role"}):
        for rule in body["rules"]:
            for access in granted([{**body, "rules": [rule]}]) & own.keys():
                assert body["metadata"]["namespace"] == SYSTEM
                assert rule["resourceNames"] == [own[access]]


def is_for_people(role: dict[str, Any]) -> bool:
    aggregated = "rbac.authorization.k8s.io/aggregate-to-"
    return any(label.startswith(aggregated) for label in role["metadata"]["labels"])


def test_people_see_and_change_jobs_by_the_built_in_roles() -> None:
    of_people = {
        label.rpartition("-")[2]: granted([{**body, "metadata": {"name": "x"}}])
        for body in rendered()
        if body["kind"] == "ClusterRole" and is_for_people(body)
        for label in body["metadata"]["labels"]
        if "/aggregate-to-" in label
    }
    for kind in (RL_JOBS, ROLLOUT_POOLS):
        assert of_people["view"] >= set(allowed(kind, "get", "list", "watch"))
        changes = set(allowed(kind, "create", "update", "patch", "delete"))
        assert of_people["edit"] == of_people["admin"] >= changes
    assert set(allowed(ROLLOUT_POOLS, "update", "patch", part="/scale")) <= of_people["edit"]
    assert set(allowed(RL_JOBS, "join")) <= of_people["edit"]
    assert {access.verb for access in of_people["view"]} == {"get", "list", "watch"}


# --- definitions ---------------------------------------------------------------------------------


def test_the_definition_of_each_kind_is_the_operators(objects: Objects) -> None:
    definitions = [body for body in objects if body["kind"] == "CustomResourceDefinition"]
    installed = {body["metadata"]["name"]: body["spec"] for body in definitions}
    own = [crd(resource) for resource in RESOURCES]
    assert installed == {body["metadata"]["name"]: body["spec"] for body in own}
