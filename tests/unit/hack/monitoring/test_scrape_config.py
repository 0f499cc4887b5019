"""What the Prometheus operator makes of a monitor, and the labels that discovery gives a pod."""

from typing import Any

import pytest

from hack.monitoring.scrape_config import pod_targets, scrape_config, service_targets

LABELS = {"rollcall.dev/role": "trainer", "rollcall.dev/job": "reverse"}


def pod(**status: str) -> dict[str, Any]:
    ports = [{"name": "metrics", "containerPort": 9090}, {"containerPort": 7070}]
    return {
        "metadata": {"name": "reverse-trainer-0", "namespace": "team", "labels": LABELS},
        "spec": {"containers": [{"name": "trainer", "ports": ports}]},
        "status": {"phase": "Running", **status},
    }


def monitor(kind: str, **spec: Any) -> dict[str, Any]:
    endpoint = {"path": "/metrics", "interval": "7s", "honorLabels": True, **spec.pop("on", {})}
    endpoints = "podMetricsEndpoints" if kind == "PodMonitor" else "endpoints"
    selector = {"matchLabels": {"rollcall.dev/role": "trainer"}}
    return {
        "kind": kind,
        "metadata": {"name": "m", "namespace": "system"},
        "spec": {"selector": selector, endpoints: [endpoint], **spec},
    }


def rules(made: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = made["relabel_configs"]
    return found


def test_each_port_of_a_pod_with_an_address_is_a_target() -> None:
    first, second = pod_targets([pod(podIP="10.0.0.1"), pod()])
    assert (first["targets"], second["targets"]) == (["10.0.0.1:9090"], ["10.0.0.1:7070"])
    assert first["labels"] == {
        "__meta_kubernetes_namespace": "team",
        "__meta_kubernetes_pod_name": "reverse-trainer-0",
        "__meta_kubernetes_pod_phase": "Running",
        "__meta_kubernetes_pod_label_rollcall_dev_role": "trainer",
        "__meta_kubernetes_pod_labelpresent_rollcall_dev_role": "true",
        "__meta_kubernetes_pod_label_rollcall_dev_job": "reverse",
        "__meta_kubernetes_pod_labelpresent_rollcall_dev_job": "true",
        "__meta_kubernetes_pod_container_name": "trainer",
        "__meta_kubernetes_pod_container_port_name": "metrics",
        "__meta_kubernetes_pod_container_port_number": "9090",
    }


def test_a_pod_that_is_being_deleted_is_no_target() -> None:
    leaving = pod(podIP="10.0.0.1")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert list(pod_targets([leaving])) == []


def test_a_service_is_a_target_for_each_of_its_pods() -> None:
    service = {
        "metadata": {"name": "op-metrics", "namespace": "system", "labels": {"a": "b"}},
        "spec": {"ports": [{"name": "http", "port": 80}]},
    }
    (target,) = service_targets(service, {"op-0": "10.0.0.9"}, port=8080)
    assert target["targets"] == ["10.0.0.9:8080"]
    assert target["labels"]["__meta_kubernetes_service_name"] == "op-metrics"
    assert target["labels"]["__meta_kubernetes_endpoint_port_name"] == "http"
    assert target["labels"]["__meta_kubernetes_service_label_a"] == "b"


def test_a_selector_keeps_what_has_the_labels() -> None:
    made = scrape_config(monitor("PodMonitor", namespaceSelector={"any": True}), targets="t")
    assert rules(made)[0] == {
        "action": "keep",
        "source_labels": [
            "__meta_kubernetes_pod_label_rollcall_dev_role",
            "__meta_kubernetes_pod_labelpresent_rollcall_dev_role",
        ],
        "regex": "(trainer);true",
    }
    assert (made["metrics_path"], made["scrape_interval"]) == ("/metrics", "7s")
    assert made["honor_labels"] is True


@pytest.mark.parametrize(
    ("selector", "names"),
    [(None, "system"), ({"matchNames": ["a", "b"]}, "a|b"), ({"any": True}, None)],
)
def test_a_monitor_looks_in_the_namespaces_that_it_selects(
    selector: dict[str, Any] | None, names: str | None
) -> None:
    spec = {} if selector is None else {"namespaceSelector": selector}
    made = rules(scrape_config(monitor("PodMonitor", **spec), targets="t"))
    of_namespace = ["__meta_kubernetes_namespace"]
    kept = [
        r["regex"] for r in made if r.get("action") == "keep" and r["source_labels"] == of_namespace
    ]
    assert kept == ([names] if names else [])


def test_a_port_and_relabellings_of_the_endpoint_come_last() -> None:
    own = {"action": "replace", "sourceLabels": ["x"], "targetLabel": "job"}
    made = rules(
        scrape_config(
            monitor("ServiceMonitor", on={"port": "http", "relabelings": [own]}), targets="t"
        )
    )
    assert {
        "action": "keep",
        "source_labels": ["__meta_kubernetes_endpoint_port_name"],
        "regex": "http",
    } in made
    assert made[-1] == {"action": "replace", "source_labels": ["x"], "target_label": "job"}


def test_a_field_that_is_not_carried_over_is_an_error() -> None:
    with pytest.raises(NotImplementedError, match="scheme"):
        scrape_config(monitor("PodMonitor", on={"scheme": "https"}), targets="t")
