"""Prometheus' scrape configuration of a ServiceMonitor or PodMonitor, and what is to be scraped.

The relabelling rules are those that the Prometheus operator makes of a monitor
(`generatePodMonitorConfig` and `generateServiceMonitorConfig` in its pkg/prometheus/promcfg.go), as
far as the chart's monitors use them. Debian's Prometheus cannot discover pods by itself, so targets
come from files, with the `__meta_kubernetes_*` labels that its discovery would give them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Object = dict[str, Any]
Target = dict[str, Any]
_META = "__meta_kubernetes_"
_KNOWN = {
    "ServiceMonitor": {"port", "path", "interval", "honorLabels", "relabelings"},
    "PodMonitor": {"port", "path", "interval", "honorLabels", "relabelings"},
}
_ENDED = "Failed|Succeeded"


def scrape_config(monitor: Mapping[str, Any], *, targets: str) -> Object:
    """One scrape job, whose targets are in the JSON file `targets`.

    NotImplementedError for what this does not carry over, so that no field of a monitor is ignored.
    """
    kind, metadata, spec = monitor["kind"], monitor["metadata"], monitor["spec"]
    of_pods = kind == "PodMonitor"
    (endpoint,) = spec["podMetricsEndpoints" if of_pods else "endpoints"]
    unknown = (set(endpoint) - _KNOWN[kind]) | (
        set(spec) - {"selector", "namespaceSelector", "podMetricsEndpoints", "endpoints"}
    )
    if unknown:
        raise NotImplementedError(f"{kind}: {', '.join(sorted(unknown))}")
    thing = "pod" if of_pods else "service"
    rules = [*_selected(spec["selector"], thing), *_in_namespaces(monitor)]
    if of_pods:
        rules.append(_rule("drop", ["pod_phase"], regex=_ENDED))
    rules += _on_port(endpoint.get("port"), of_pods=of_pods)
    rules += _identity(f"{metadata['namespace']}/{metadata['name']}", of_pods=of_pods)
    rules += [_in_prometheus_case(rule) for rule in endpoint.get("relabelings", ())]
    return {
        "job_name": f"{kind[0].lower()}{kind[1:]}/{metadata['namespace']}/{metadata['name']}/0",
        "honor_labels": endpoint.get("honorLabels", False),
        "metrics_path": endpoint.get("path", "/metrics"),
        "scrape_interval": endpoint["interval"],
        "scrape_timeout": endpoint["interval"],
        "relabel_configs": rules,
        "file_sd_configs": [{"files": [targets], "refresh_interval": "1s"}],
    }


def pod_targets(pods: Iterable[Mapping[str, Any]]) -> Iterator[Target]:
    """A target for each declared port of each pod that has an address."""
    for pod in pods:
        address = (pod.get("status") or {}).get("podIP")
        if not address or "deletionTimestamp" in pod["metadata"]:
            continue
        of_pod = _of_pod(pod) | _labels("pod", pod)
        for container in pod["spec"]["containers"]:
            of_pod[f"{_META}pod_container_name"] = container["name"]
            for port in container.get("ports", ()):
                number = str(port["containerPort"])
                declared = {
                    f"{_META}pod_container_port_name": port.get("name", ""),
                    f"{_META}pod_container_port_number": number,
                }
                yield {"targets": [f"{address}:{number}"], "labels": of_pod | declared}


def service_targets(
    service: Mapping[str, Any], pods: Mapping[str, str], *, port: int
) -> Iterator[Target]:
    """A target for the port of a service at each of the pods (name to address) behind it.

    `port` is where the pods listen. ValueError if the service has several.
    """
    (declared,) = service["spec"]["ports"]
    metadata = service["metadata"]
    for name, address in pods.items():
        labels = {
            f"{_META}namespace": metadata["namespace"],
            f"{_META}service_name": metadata["name"],
            f"{_META}endpoint_port_name": declared["name"],
            f"{_META}pod_name": name,
            **_labels("service", service),
        }
        yield {"targets": [f"{address}:{port}"], "labels": labels}


def _of_pod(pod: Mapping[str, Any]) -> dict[str, str]:
    return {
        f"{_META}namespace": pod["metadata"]["namespace"],
        f"{_META}pod_name": pod["metadata"]["name"],
        f"{_META}pod_phase": pod["status"].get("phase", ""),
    }


def _labels(thing: str, found: Mapping[str, Any]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for name, value in found["metadata"]["labels"].items():
        labels[f"{_META}{thing}_label_{_safe(name)}"] = value
        labels[f"{_META}{thing}_labelpresent_{_safe(name)}"] = "true"
    return labels


def _selected(selector: Mapping[str, Any], thing: str) -> Iterator[Object]:
    """Rules that keep what a label selector matches. KeyError for operators other than In."""
    wanted = {name: [value] for name, value in selector.get("matchLabels", {}).items()}
    for rule in selector.get("matchExpressions", ()):
        wanted[rule["key"]] = {"In": rule["values"]}[rule["operator"]]
    for name, values in wanted.items():
        sources = [f"{thing}_label_{_safe(name)}", f"{thing}_labelpresent_{_safe(name)}"]
        yield _rule("keep", sources, regex=f"({'|'.join(map(re.escape, values))});true")


def _in_namespaces(monitor: Mapping[str, Any]) -> Iterator[Object]:
    """What discovery itself does: it looks in these namespaces alone; by default in its own."""
    selector = monitor["spec"].get("namespaceSelector") or {}
    if not selector.get("any"):
        names = selector.get("matchNames") or [monitor["metadata"]["namespace"]]
        yield _rule("keep", ["namespace"], regex="|".join(map(re.escape, names)))


def _on_port(port: str | None, *, of_pods: bool) -> Iterator[Object]:
    if port is not None:
        source = "pod_container_port_name" if of_pods else "endpoint_port_name"
        yield _rule("keep", [source], regex=re.escape(port))


def _identity(name: str, *, of_pods: bool) -> Iterator[Object]:
    yield _rule("replace", ["namespace"], target="namespace")
    yield _rule("replace", ["pod_name"], target="pod")
    if of_pods:
        yield _rule("replace", ["pod_container_name"], target="container")
        yield {"target_label": "job", "replacement": name}
    else:
        yield _rule("replace", ["service_name"], target="service")
        yield _rule("replace", ["service_name"], target="job")
        yield _rule("replace", ["endpoint_port_name"], target="endpoint")


def _rule(action: str, sources: list[str], *, regex: str = "", target: str = "") -> Object:
    made: Object = {"action": action, "source_labels": [_META + source for source in sources]}
    return made | ({"regex": regex} if regex else {}) | ({"target_label": target} if target else {})


def _in_prometheus_case(rule: Mapping[str, Any]) -> Object:
    """`sourceLabels` is called `source_labels` in Prometheus' own files."""
    return {re.sub("([A-Z])", lambda m: f"_{m[1].lower()}", key): v for key, v in rule.items()}


def _safe(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_]", "_", name)
