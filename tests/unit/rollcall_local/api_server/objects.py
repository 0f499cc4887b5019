"""Objects that tests write."""

import copy
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]

ROOT = Path(__file__).parents[4]


def config_map(name: str = "a", *, labels: dict[str, str] | None = None, **data: str) -> Object:
    metadata: Object = {"name": name, "namespace": "ns"}
    if labels is not None:
        metadata["labels"] = labels
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def pod(name: str = "p", *, node: str = "", grace: int | None = None, **metadata: Any) -> Object:
    spec: Object = {"containers": [{"name": "worker", "image": "worker"}]}
    if node:
        spec["nodeName"] = node
    if grace is not None:
        spec["terminationGracePeriodSeconds"] = grace
    named = {"name": name, "namespace": "ns", **metadata}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": named, "spec": spec}


_JOB = yaml.safe_load((ROOT / "examples" / "reverse.yaml").read_text())


def job(name: str = "reverse", **spec: Any) -> Object:
    """The job of examples/reverse.yaml."""
    made: Object = copy.deepcopy(_JOB)
    made["metadata"] = {"name": name, "namespace": "ns"}
    made["spec"].update(spec)
    return made


def pool(name: str = "lent", **spec: Any) -> Object:
    """A pool for the job."""
    template = job()["spec"]["rollouts"][0]["template"]
    whole = {"jobRef": {"name": "reverse"}, "engine": {"name": "tiny"}, "template": template}
    return {
        "apiVersion": "rollcall.dev/v1alpha1",
        "kind": "RolloutPool",
        "metadata": {"name": name, "namespace": "ns"},
        "spec": {**whole, **spec},
    }
