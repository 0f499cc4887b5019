"""The chart's PodMonitor: which ports of which pods it scrapes, and with which labels."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from rollcall_operator.api.rljob import RLJobSpec
from rollcall_operator.plan.children import trainer
from rollcall_protocol.pod_contract import METRICS_PORT
from rollcall_runtime.worker.telemetry import Metrics, RolloutMetrics, TrainerMetrics
from tests.apiserver.bad_manifests.manifests import OWN_REFERENCE, Changes
from tests.apiserver.cluster import rendered
from tests.unit.rollcall_operator.plan.simulator import JobSimulator, good_job

Labels = dict[str, str]
Pod = dict[str, Any]

TRAINER, ROLLOUT = "spec.trainer.template.spec", "spec.rollouts[0].template.spec"


def pod_monitor(*flags: str) -> dict[str, Any]:
    objects = rendered("--set", "podMonitor.enabled=true", *flags)
    (found,) = (body["spec"] for body in objects if body["kind"] == "PodMonitor")
    spec: dict[str, Any] = found
    return spec


def trainer_pod(changes: Changes | None = None) -> Pod:
    """The template of the pods that the operator makes for a job called bad in namespace team."""
    job = good_job(changes)
    spec = RLJobSpec.model_validate(job["spec"])
    found: Pod = trainer.stateful_set(job, spec, replicas=1)["spec"]["template"]
    return found


def rollout_pod(changes: Changes | None = None) -> Pod:
    simulator = JobSimulator(changes)
    simulator.converge()
    found: Pod = simulator.children["Deployment/bad-cpu"]["spec"]["template"]
    return found


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector matches; KeyError for an operator other than In."""
    known = {"In": lambda rule: labels.get(rule["key"]) in rule["values"]}
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        known[rule["operator"]](rule) for rule in selector.get("matchExpressions", ())
    )


def targets(monitor: Mapping[str, Any], pod: Pod) -> list[Labels]:
    """Labels of the targets that Prometheus makes of a pod in namespace team."""
    if not selects(monitor["selector"], pod["metadata"]["labels"]):
        return []
    (endpoint,) = monitor["podMetricsEndpoints"]
    relabelled = (relabel(found, endpoint["relabelings"]) for found in discovered(pod))
    return [
        {name: value for name, value in labels.items() if value and not name.startswith("__")}
        for labels in relabelled
        if labels is not None
    ]


def discovered(pod: Pod) -> Iterator[Labels]:
    """One target for each declared port, with the labels that the Prometheus operator gives it."""
    own = {
        f"__meta_kubernetes_pod_label_{re.sub('[^a-zA-Z0-9_]', '_', name)}": value
        for name, value in pod["metadata"]["labels"].items()
    }
    for container in pod["spec"]["containers"]:
        for port in container.get("ports", ()):
            yield own | {
                "__meta_kubernetes_pod_container_port_name": port.get("name", ""),
                "__meta_kubernetes_pod_container_port_number": str(port["containerPort"]),
                "namespace": "team",
                "job": "rollcall-system/workers",
                "container": container["name"],
            }


def relabel(labels: Labels, rules: list[dict[str, Any]]) -> Labels | None:
    """The labels after all rules, None when one drops the target; KeyError for other actions."""
    for rule in rules:
        value = ";".join(labels.get(name, "") for name in rule["sourceLabels"])
        if rule["action"] == "keep":
            if not re.fullmatch(rule["regex"], value):
                return None
        else:
            labels = labels | {{"replace": rule["targetLabel"]}[rule["action"]]: value}
    return labels


def exposed(metrics: Metrics) -> list[Labels]:
    """The labels of Rollcall's own samples on a worker's page."""
    families = text_string_to_metric_families(generate_latest(metrics.registry).decode())
    return [
        dict(sample.labels)
        for family in families
        for sample in family.samples
        if sample.name.startswith("rollcall_")
    ]


def reference_pod() -> Pod:
    simulator = JobSimulator(OWN_REFERENCE)
    simulator.converge()
    found: Pod = simulator.children["Deployment/bad-reference"]["spec"]["template"]
    return found


@pytest.mark.parametrize(
    "pod",
    [trainer_pod(), rollout_pod(), reference_pod()],
    ids=["trainer", "rollout", "reference"],
)
def test_each_worker_is_one_target(pod: Pod) -> None:
    assert len(targets(pod_monitor(), pod)) == 1


def test_the_endpoint_is_the_workers_page() -> None:
    (endpoint,) = pod_monitor("--set", "podMonitor.interval=7s")["podMetricsEndpoints"]
    assert (endpoint["path"], endpoint["interval"]) == ("/metrics", "7s")


@pytest.mark.parametrize(("make", "path"), [(trainer_pod, TRAINER), (rollout_pod, ROLLOUT)])
def test_the_port_is_found_whatever_the_template_calls_it_and_a_sidecars_is_not(
    make: Any, path: str
) -> None:
    role = "trainer" if make is trainer_pod else "rollout"
    worker = {"name": role, "image": "i", "ports": [{"name": "mine", "containerPort": 9090}]}
    sidecar = {"name": "log", "image": "i", "ports": [{"name": "metrics", "containerPort": 9100}]}
    pod = make({f"{path}.containers": [worker, sidecar]})
    assert [labels["container"] for labels in targets(pod_monitor(), pod)] == [role]
    assert METRICS_PORT == 9090


def test_other_pods_are_not_scraped() -> None:
    """The operator's own have a ServiceMonitor; other programs' may declare port 9090, too."""
    monitor, pod = pod_monitor(), trainer_pod()
    (deployment,) = (body for body in rendered() if body["kind"] == "Deployment")
    operator = deployment["spec"]["template"]["metadata"]["labels"]
    labels = pod["metadata"]["labels"]
    for others in (
        operator,
        {name: value for name, value in labels.items() if name != "rollcall.dev/role"},
        labels | {"rollcall.dev/role": "notebook"},
        labels | {"app.kubernetes.io/managed-by": "Helm"},
    ):
        assert not targets(monitor, {**pod, "metadata": {"labels": others}}), others


@pytest.mark.parametrize(
    ("pod", "metrics"),
    [
        (trainer_pod(), TrainerMetrics(namespace="team", job="bad", group="default")),
        (
            rollout_pod(),
            RolloutMetrics(namespace="team", job="bad", pool="bad-cpu", group="default"),
        ),
    ],
    ids=["trainer", "rollout"],
)
def test_a_target_has_the_labels_that_the_workers_metrics_have(pod: Pod, metrics: Metrics) -> None:
    """So that `up` and `process_*`, which have none, are found by job and pool as well."""
    monitor = pod_monitor()
    (target,) = targets(monitor, pod)
    assert target["role"] == pod["metadata"]["labels"]["rollcall.dev/role"]
    for labels in exposed(metrics):
        for name in ("namespace", "job", "pool"):
            assert labels.get(name) == target.get(name), name
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert endpoint["honorLabels"] is True  # else the metrics' own become exported_job and so on


def test_jobs_are_looked_for_where_the_operator_serves_them() -> None:
    assert pod_monitor()["namespaceSelector"] == {"any": True}
    some = pod_monitor("--set", "namespaces={team,other}")["namespaceSelector"]
    assert some == {"matchNames": ["team", "other"]}
