"""What a controller wants changed, and what controllers know of pods."""

import copy
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Changes:
    """Pods to make and to delete, claims that they need first, and the owner's status now."""

    create: list[Object] = field(default_factory=list)
    delete: list[Object] = field(default_factory=list)
    claims: list[Object] = field(default_factory=list)
    status: Object = field(default_factory=dict)


def template_hash(template: Object) -> str:
    """Names a template's pods: the same for the same content."""
    text = json.dumps(template, sort_keys=True).encode()
    return hashlib.sha256(text).hexdigest()[:10]


def pod_from(owner: Object, *, name: str, labels: dict[str, str]) -> Object:
    """A pod by the template of `owner`, which controls it."""
    template = copy.deepcopy(owner["spec"]["template"])
    metadata = template.get("metadata") or {}
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **metadata,
            "name": name,
            "namespace": owner["metadata"]["namespace"],
            "labels": {**(metadata.get("labels") or {}), **labels},
            "ownerReferences": [reference],
        },
        "spec": template["spec"],
    }


def controlled_by(owner: Object, pods: list[Object]) -> list[Object]:
    """Those that `owner` has made."""
    uid = owner["metadata"]["uid"]
    return [
        pod
        for pod in pods
        for reference in pod["metadata"].get("ownerReferences") or ()
        if reference["uid"] == uid and reference.get("controller")
    ]


def is_terminating(pod: Object) -> bool:
    """Whether it was deleted, and has not ended yet."""
    return "deletionTimestamp" in pod["metadata"]


def is_over(pod: Object) -> bool:
    """Whether all of its containers have ended for good."""
    return (pod.get("status") or {}).get("phase") in {"Failed", "Succeeded"}


def is_ready(pod: Object) -> bool:
    """Whether it has the condition Ready."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
