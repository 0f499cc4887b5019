"""What the operator adds to a pod template, and what it leaves alone."""

import json
from typing import Any

import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from rollcall_operator.plan.children.pod_template import (
    WorkerAdditions,
    variable,
    worker_container,
    worker_template,
)
from rollcall_protocol import pod_contract
from tests.apiserver.bad_manifests.manifests import FRONT, OWN_REFERENCE, Changes
from tests.unit.rollcall_local.kubelet import kubelet_expansion
from tests.unit.rollcall_operator.plan.simulator import JobSimulator

RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
    "runAsNonRoot": True,
}
WRITABLE = {"readOnlyRootFilesystem": False}


def template(container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    worker = {"name": "trainer", "image": "i", **(container or {})}
    return {"spec": {"containers": [worker], **spec}}


def built(given: dict[str, Any]) -> dict[str, Any]:
    extras = WorkerAdditions(
        role="trainer",
        job_uid="u",
        labels={"rollcall.dev/role": "trainer"},
        command="rollcall-trainer",
        env=(("ROLLCALL_CONFIG", "{}"),),
        ports=(("metrics", 9090),),
        volumes=({"name": "rollcall-state", "emptyDir": {}},),
        mounts=({"name": "rollcall-state", "mountPath": "/state"},),
    )
    return worker_template(given, extras)


def worker(given: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = built(given)["spec"]["containers"][0]
    return found


def test_the_users_template_is_not_changed() -> None:
    given = template()
    built(given)
    assert given == template()


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["trainer"], "trainer"),
        (["main"], "main"),
        (["sidecar", "trainer"], "trainer"),
        (["main", "sidecar"], None),
    ],
)
def test_which_container_is_the_worker(names: list[str], chosen: str | None) -> None:
    given = {"spec": {"containers": [{"name": name, "image": "i"} for name in names]}}
    found = worker_container(given, "trainer")
    assert (found["name"] if found else None) == chosen


def test_the_worker_is_named_for_kubectl_logs_and_for_ourselves() -> None:
    annotations = built(template({"name": "main"}))["metadata"]["annotations"]
    assert annotations["kubectl.kubernetes.io/default-container"] == "main"
    assert annotations["rollcall.dev/worker-container"] == "main"
    assert annotations["rollcall.dev/job-uid"] == "u"


def test_labels_and_annotations_of_the_users_stay() -> None:
    given = template()
    given["metadata"] = {
        "labels": {"team": "rl"},
        "annotations": {"kubectl.kubernetes.io/default-container": "sidecar"},
    }
    metadata = built(given)["metadata"]
    assert metadata["labels"] == {"team": "rl", "rollcall.dev/role": "trainer"}
    assert metadata["annotations"]["kubectl.kubernetes.io/default-container"] == "sidecar"


@pytest.mark.parametrize(
    ("given", "command"),
    [
        ({}, ["rollcall-trainer"]),
        ({"command": ["mine"]}, ["mine"]),
        ({"args": ["--mine"]}, None),
    ],
)
def test_a_command_of_the_users_stays(given: dict[str, Any], command: list[str] | None) -> None:
    assert worker(template(given)).get("command") == command


def test_variables_volumes_and_ports_are_added_after_the_users() -> None:
    given = {
        "env": [{"name": "MINE", "value": "1"}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "ports": [{"containerPort": 9090, "name": "my-metrics"}],
    }
    result = worker(template(given))
    assert [item["name"] for item in result["env"]][:2] == ["MINE", "ROLLCALL_CONFIG"]
    assert {item["name"] for item in result["env"]} >= {
        pod_contract.POD_NAME,
        pod_contract.POD_UID,
        pod_contract.POD_IP,
    }
    mounts = [item["name"] for item in result["volumeMounts"]]
    assert mounts == ["data", "rollcall-state", "rollcall-tmp"]
    assert result["ports"] == [{"containerPort": 9090, "name": "my-metrics"}], "no port twice"


def test_each_probe_is_added_where_the_user_gave_none() -> None:
    mine = {"exec": {"command": ["true"]}}
    result = worker(template({"readinessProbe": mine}))
    assert result["readinessProbe"] == mine
    assert result["livenessProbe"]["httpGet"] == {
        "path": "/healthz",
        "port": pod_contract.METRICS_PORT,
    }
    assert result["startupProbe"]["httpGet"]["path"] == "/healthz"
    readiness = worker(template())["readinessProbe"]
    assert readiness["httpGet"]["path"] == "/readyz"
    assert readiness["periodSeconds"] == 1, "a rollout that falls behind is seen within seconds"


@pytest.mark.parametrize(
    ("container", "pod", "expected"),
    [
        pytest.param({}, {}, RESTRICTED, id="restricted where nothing is said"),
        pytest.param(
            {"runAsUser": 0},
            {},
            {k: v for k, v in {**RESTRICTED, "runAsUser": 0}.items() if k != "runAsNonRoot"},
            id="root asked for",
        ),
        pytest.param(
            {},
            {"runAsUser": 0},
            {k: v for k, v in RESTRICTED.items() if k != "runAsNonRoot"},
            id="root asked for by the pod",
        ),
        pytest.param({"privileged": True}, {}, {"privileged": True}, id="privileged"),
        pytest.param(
            {"capabilities": {"add": ["SYS_PTRACE"]}},
            {"seccompProfile": {"type": "Unconfined"}, "runAsNonRoot": False},
            {"allowPrivilegeEscalation": False, "capabilities": {"add": ["SYS_PTRACE"]}},
            id="the user's values win",
        ),
    ],
)
def test_security_contexts(
    container: dict[str, Any], pod: dict[str, Any], expected: dict[str, Any]
) -> None:
    given = template({"securityContext": {**container, **WRITABLE}}, securityContext=pod)
    assert worker(given)["securityContext"] == {**expected, **WRITABLE}


def test_init_containers_and_sidecars_are_restricted_too() -> None:
    given = template(initContainers=[{"name": "fetch", "image": "i"}])
    given["spec"]["containers"].append({"name": "sidecar", "image": "i"})
    spec = built(given)["spec"]
    for container in (spec["initContainers"][0], spec["containers"][1]):
        assert container["securityContext"] == RESTRICTED, container["name"]


def test_the_worker_cannot_write_its_root_file_system_but_a_bounded_tmp() -> None:
    spec = built(template())["spec"]
    worker = spec["containers"][0]
    assert worker["securityContext"] == {**RESTRICTED, "readOnlyRootFilesystem": True}
    assert {"name": "rollcall-tmp", "mountPath": "/tmp"} in worker["volumeMounts"]
    assert {"name": "rollcall-tmp", "emptyDir": {"sizeLimit": "10Gi"}} in spec["volumes"]


@pytest.mark.parametrize(
    "container",
    [
        {"volumeMounts": [{"name": "scratch", "mountPath": "/tmp/"}]},
        {"securityContext": WRITABLE},
        {"securityContext": {"privileged": True}},
    ],
    ids=["tmp of its own", "writable root", "privileged"],
)
def test_no_tmp_is_added_where_the_template_has_one(container: dict[str, Any]) -> None:
    assert "rollcall-tmp" not in str(built(template(container)))


PATIENCE = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}
NOT_READY = {"key": "node.kubernetes.io/not-ready", **PATIENCE}
UNREACHABLE = {"key": "node.kubernetes.io/unreachable", **PATIENCE}


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ([], [NOT_READY, UNREACHABLE]),
        ([{"key": "gpu", "operator": "Exists"}], [NOT_READY, UNREACHABLE]),
        ([{**UNREACHABLE, "tolerationSeconds": 600}], [NOT_READY]),
        ([{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}], [UNREACHABLE]),
        ([{**UNREACHABLE, "effect": "NoSchedule"}], [NOT_READY, UNREACHABLE]),
        ([{"operator": "Exists"}], []),
    ],
)
def test_workers_leave_a_lost_node_soon_unless_the_user_says_how_long(
    given: list[dict[str, Any]], added: list[dict[str, Any]]
) -> None:
    assert built(template(tolerations=given))["spec"]["tolerations"] == [*given, *added]


def test_a_field_that_is_null_counts_as_not_set() -> None:
    empty = ("env", "ports", "volumeMounts", "securityContext", "readinessProbe")
    nothing = template(
        dict.fromkeys(empty), volumes=None, tolerations=None, securityContext=None, hostname=None
    )
    assert built({**nothing, "metadata": None}) == built(template())


def test_pods_get_no_service_account_token_unless_asked() -> None:
    assert built(template())["spec"]["automountServiceAccountToken"] is False
    asked = template(automountServiceAccountToken=True)
    assert built(asked)["spec"]["automountServiceAccountToken"] is True


# --- one user that the operator knows, so that the kubelet hides the token -----------------------

USER = 65532
POD = "spec.trainer.template.spec"
CONTEXT = f"{POD}.containers[0].securityContext"
ANOTHER = [{"name": "first", "image": "i"}]
LEFT_ALONE: list[tuple[str, Changes]] = [
    ("its own user", {CONTEXT: {"runAsUser": 1000}}),
    ("a user of the pod", {f"{POD}.securityContext": {"runAsUser": 1000}}),
    ("root", {CONTEXT: {"runAsUser": 0}}),
    ("privileges", {CONTEXT: {"privileged": True}}),
    ("an init container", {f"{POD}.initContainers": ANOTHER}),
    ("a sidecar", {f"{POD}.containers": [{"name": "trainer", "image": "i"}, *ANOTHER]}),
]


def contexts(changes: Changes | None = None, *, user: int | None = USER) -> dict[str, Any]:
    """Security contexts of the workers' containers, by child."""
    simulator = JobSimulator(changes)
    simulator.worker_user = user
    simulator.converge()
    return {
        name: child["spec"]["template"]["spec"]["containers"][0]["securityContext"]
        for name, child in simulator.children.items()
        if child["kind"] in {"StatefulSet", "Deployment"}
    }


def test_all_workers_get_the_user() -> None:
    made = contexts(OWN_REFERENCE)
    assert set(made) == {
        "StatefulSet/bad-trainer",
        "Deployment/bad-cpu",
        "Deployment/bad-reference",
    }
    for context in made.values():
        assert context["runAsUser"] == USER
        assert context["runAsNonRoot"] is True


@pytest.mark.parametrize(("what", "changes"), LEFT_ALONE, ids=[name for name, _ in LEFT_ALONE])
def test_a_template_decides_if_it_says_more(what: str, changes: Changes) -> None:
    made = contexts(changes)
    without = contexts(changes, user=None)
    assert made["StatefulSet/bad-trainer"] == without["StatefulSet/bad-trainer"], what
    assert made["Deployment/bad-cpu"]["runAsUser"] == USER


def test_without_the_setting_the_images_decide() -> None:
    assert all("runAsUser" not in context for context in contexts(user=None).values())


@settings(max_examples=500)
@for_all(st.text('$()KEY \n"é', max_size=16))
def test_the_kubelet_leaves_a_value_as_it_is(text: str) -> None:
    secret = {"KEY": "secret", "": "secret", "KEY$": "secret"}
    assert kubelet_expansion.expand(variable("ANY", text)["value"], secret) == text


DOLLARS = "$(KEY) $$(KEY) $$ $KEY ${KEY} $"


def test_workers_read_the_dollars_of_the_spec_as_they_are() -> None:
    key = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    source = {"name": "/rows.jsonl", "chat": True, "system": DOLLARS, "template": DOLLARS}
    simulator = JobSimulator(
        {
            **OWN_REFERENCE,
            **FRONT,
            "spec.data": {"sources": [source]},
            "spec.reward": {"function": "http", "config": {"url": f"http://x/{DOLLARS}"}},
            "spec.rollouts[0].engine.config": {"any": DOLLARS},
            "spec.trainer.template.spec.containers[0].env": [key],
        }
    )
    simulator.converge()
    workers = [
        child["spec"]["template"]["spec"]["containers"][0]
        for child in simulator.children.values()
        if child["kind"] in {"StatefulSet", "Deployment"}
    ]
    assert len(workers) == 4  # trainer, rollout, front, reference
    for container in workers:
        values = {item["name"]: item.get("value", "secret") for item in container["env"]}
        texts = {n: kubelet_expansion.expand(value, values) for n, value in values.items()}
        config = json.loads(texts[pod_contract.CONFIG])
        (read,) = config["data"]["sources"]
        assert (read["system"], read["template"]) == (DOLLARS, DOLLARS)
        assert config["reward_scoring"]["config"]["url"] == f"http://x/{DOLLARS}"
        if pod_contract.POOL_CONFIG in texts:
            pool = json.loads(texts[pod_contract.POOL_CONFIG])
            assert pool["engine"]["config"] == {"any": DOLLARS}
