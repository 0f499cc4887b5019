"""What runs and finds the pods of a worker template: Deployments and headless Services."""

from collections.abc import Mapping, Sequence

from rollcall_operator.plan.model import Manifest


def worker_deployment(
    metadata: Manifest, *, selector: Mapping[str, str], replicas: int, template: Manifest
) -> Manifest:
    """A Deployment that replaces one pod at a time when its template changes."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 2,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
            "selector": {"matchLabels": dict(selector)},
            "template": template,
        },
    }


def headless_service(
    metadata: Manifest,
    *,
    selector: Mapping[str, str],
    ports: Sequence[tuple[str, int]],
    also_not_ready: bool,
) -> Manifest:
    """A Service whose DNS names lead to the pods themselves, to those that are not ready too if
    `also_not_ready`; `ports` are (name, number).
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": also_not_ready,
            "selector": dict(selector),
            "ports": [{"name": name, "port": port, "protocol": "TCP"} for name, port in ports],
        },
    }
