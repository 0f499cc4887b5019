"""The chart: least rights, definitions that are upgraded, values that are checked."""

import json
import subprocess
from typing import Any

import pytest

from hack.cluster import go_build
from rollcall_operator.plan.membership.nodes import PREEMPTION_TAINTS
from tests.apiserver.cluster import rendered
from tests.apiserver.cluster_user import (
    ROOT,
)

CHART = ROOT / "charts" / "rollcall-operator"
EXTRAS = {
    "serviceMonitor": "ServiceMonitor",
    "podMonitor": "PodMonitor",
    "prometheusRule": "PrometheusRule",
    "dashboards": "ConfigMap",
    "networkPolicy": "NetworkPolicy",
    "admissionPolicy": "ValidatingAdmissionPolicy",
    "podDisruptionBudget": "PodDisruptionBudget",
}


def kinds(objects: list[dict[str, Any]]) -> list[str]:
    return [body["kind"] for body in objects]


def one(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = (body for body in objects if body["kind"] == kind)
    return found


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = go_build.programs(["helm"])["helm"]
    return subprocess.run(
        [program, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_it_lints() -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "values",
    [
        "replicas=-1",
        "image.pullPolicy=Sometimes",
        "image.digest=sha256:abc",
        "admissionPolicy.validationActions={Refuse}",
        "admissionPolicy.secrets={Not_One}",
        "typo=1",
        "jobNetworkPolicies.monitoring=prometheus",
        "namespaces={Not_One}",
        "preemptionTaints={a b}",
        "prometheusRule.alerts.jobStuck.for=soon",
        "prometheusRule.alerts.trainerStarved.waitForBatchRatio=2",
        "prometheusRule.alerts.noSuchAlert.for=5m",
    ],
)
def test_wrong_values_are_refused(values: str) -> None:
    done = helm("template", "x", str(CHART), "--kube-version", "1.36.0", "--set", values)
    assert done.returncode != 0
    assert values.split("=", maxsplit=1)[0].split(".", maxsplit=1)[0] in done.stderr


def test_its_definitions_are_the_generated_ones_and_outlive_the_release() -> None:
    copies = {path.name: path.read_text() for path in (CHART / "files" / "crds").iterdir()}
    assert copies == {path.name: path.read_text() for path in (ROOT / "crds").iterdir()}
    definitions = [b for b in rendered() if b["kind"] == "CustomResourceDefinition"]
    assert len(definitions) == len(copies)
    for body in definitions:
        assert body["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert "CustomResourceDefinition" not in kinds(rendered("--set", "crds.install=false"))


@pytest.mark.parametrize("flag", ["rbac.nodes=false", "namespaces={team}"])
def test_nodes_are_read_only_where_the_whole_cluster_is_served_and_it_is_wanted(flag: str) -> None:
    roles = [b for b in rendered("--set", flag) if b["kind"] in {"ClusterRole", "Role"}]
    assert not any("nodes" in rule["resources"] for role in roles for rule in role["rules"])


def test_the_taints_are_the_operators_own_defaults_and_can_be_none() -> None:
    (container,) = one(rendered(), "Deployment")["spec"]["template"]["spec"]["containers"]
    assert f"--preemption-taints={','.join(PREEMPTION_TAINTS)}" in container["args"]
    none = one(rendered("--set", "preemptionTaints=null"), "Deployment")
    assert "--preemption-taints=" in none["spec"]["template"]["spec"]["containers"][0]["args"]


def peers(flag: str, *values: str) -> Any:
    """What the operator is given for the NetworkPolicies of jobs."""
    flags = [part for value in values for part in ("--set-json", value)]
    (container,) = one(rendered(*flags), "Deployment")["spec"]["template"]["spec"]["containers"]
    (text,) = (a.partition("=")[2] for a in container["args"] if a.startswith(f"--{flag}="))
    return json.loads(text)


def test_policies_of_jobs_let_in_the_operators_own_pods_and_the_namespace_monitoring() -> None:
    deployment = one(rendered(), "Deployment")
    (peer,) = peers("operator-peers")
    namespace = {"kubernetes.io/metadata.name": deployment["metadata"]["namespace"]}
    assert peer["namespaceSelector"] == {"matchLabels": namespace}
    assert peer["podSelector"] == deployment["spec"]["selector"]
    monitoring = {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}
    assert peers("monitoring-peers") == [{"namespaceSelector": monitoring}]
    block = {"ipBlock": {"cidr": "10.0.0.1/32"}}
    value = f"jobNetworkPolicies.monitoring={json.dumps([block])}"
    assert peers("monitoring-peers", value) == [block]
    assert peers("monitoring-peers", "jobNetworkPolicies.monitoring=[]") == []


def test_a_digest_takes_the_place_of_the_tag() -> None:
    def image(*values: str) -> str:
        flags = [part for value in values for part in ("--set", value)]
        pod = one(rendered(*flags), "Deployment")["spec"]["template"]["spec"]
        return str(pod["containers"][0]["image"])

    digest = f"sha256:{'0123456789abcdef' * 4}"
    assert image("image.tag=v1") == "rollcall/operator:v1"
    assert image("image.tag=v1", f"image.digest={digest}") == f"rollcall/operator@{digest}"
    assert image(f"image.digest={digest}", "image.repository=r:5000/o") == f"r:5000/o@{digest}"


@pytest.mark.parametrize(
    ("value", "flags"),
    [("65532", ["--worker-user=65532"]), ("1234", ["--worker-user=1234"]), ("null", [])],
)
def test_the_user_of_workers_is_a_value(value: str, flags: list[str]) -> None:
    deployment = one(rendered("--set", f"workerUser={value}"), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert [arg for arg in container["args"] if "worker-user" in arg] == flags


def test_the_pod_is_restricted() -> None:
    pod = one(rendered(), "Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 65532
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["limits"]["memory"]
    assert {"livenessProbe", "readinessProbe"} <= set(container)


def test_extras_are_off_unless_asked_for() -> None:
    assert not set(EXTRAS.values()) & set(kinds(rendered()))
    flags = [part for name in EXTRAS for part in ("--set", f"{name}.enabled=true")]
    assert set(EXTRAS.values()) <= set(kinds(rendered(*flags)))


def test_selectors_select_the_pods_of_this_release_and_no_others() -> None:
    flags = [f"{name}.enabled=true" for name in EXTRAS]
    ours, theirs = (
        rendered(*(part for flag in flags for part in ("--set", flag)), release=release)
        for release in ("a-rollcall-operator", "b-rollcall-operator")
    )
    exact = {
        "app.kubernetes.io/name": "rollcall-operator",
        "app.kubernetes.io/instance": "a-rollcall-operator",
    }
    for kind, path in {
        "Service": ("selector",),
        "Deployment": ("selector", "matchLabels"),
        "ServiceMonitor": ("selector", "matchLabels"),
        "NetworkPolicy": ("podSelector", "matchLabels"),
        "PodDisruptionBudget": ("selector", "matchLabels"),
    }.items():
        found = one(ours, kind)["spec"]
        for step in path:
            found = found[step]
        assert found == exact, kind
    for objects, selected in ((ours, True), (theirs, False)):
        pod = one(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
        service = one(objects, "Service")["metadata"]["labels"]
        assert (exact.items() <= pod.items()) is selected
        assert (exact.items() <= service.items()) is selected


def test_the_service_monitor_keeps_the_labels_job_and_namespace_of_the_metrics() -> None:
    """Otherwise Prometheus stores the RLJob's as exported_job, and panels and alerts see none."""
    (endpoint,) = one(rendered("--set", "serviceMonitor.enabled=true"), "ServiceMonitor")["spec"][
        "endpoints"
    ]
    assert endpoint["honorLabels"] is True


def test_all_dashboards_are_installed_as_they_are_in_the_files() -> None:
    data = one(rendered("--set", "dashboards.enabled=true"), "ConfigMap")["data"]
    files = sorted((CHART / "files" / "dashboards").glob("*.json"))
    assert len(files) == 3
    installed = {name: json.loads(text) for name, text in data.items()}
    assert installed == {f"rollcall-{path.name}": json.loads(path.read_text()) for path in files}
