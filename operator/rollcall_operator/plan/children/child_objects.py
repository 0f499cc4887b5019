"""What children of a job have in common: metadata, Deployments, headless Services."""

from collections.abc import Mapping, Sequence

from rollcall_operator.api import labels
from rollcall_operator.plan.model import Manifest


def owner(manifest: Manifest) -> list[Manifest]:
    """The ownerReferences of an object that is to be deleted together with `manifest`."""
    return [
        {
            "apiVersion": labels.API_VERSION,
            "kind": manifest["kind"],
            "name": manifest["metadata"]["name"],
            "uid": manifest["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


def common_labels(job: str, role: str) -> dict[str, str]:
    """Labels of children and pods of a job."""
    return {
        labels.NAME: "rollcall",
        labels.COMPONENT: role,
        labels.MANAGED_BY: labels.FIELD_MANAGER,
        labels.JOB: job,
        labels.ROLE: role,
    }


def child_metadata(job: Manifest, name: str, role: str) -> Manifest:
    """Metadata of a child that the job owns."""
    return {
        "name": name,
        "namespace": job["metadata"]["namespace"],
        "labels": common_labels(job["metadata"]["name"], role),
        "ownerReferences": owner(job),
    }


def pod_selector(job: Manifest, role: str) -> dict[str, str]:
    """Labels that all pods of a role of the job have, and no others."""
    return {labels.JOB: job["metadata"]["name"], labels.ROLE: role}


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
