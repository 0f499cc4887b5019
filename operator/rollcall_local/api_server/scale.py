"""The subresource `scale`, by which `kubectl scale` and autoscalers set a number of replicas.

https://kubernetes.io/docs/reference/kubernetes-api/autoscaling-resources/scale-v1/
"""

from typing import Any

from rollcall_local.api_server.errors import InvalidError

Object = dict[str, Any]

KIND, API_VERSION = "Scale", "autoscaling/v1"
_SHOWN = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def scale_of(found: Object) -> Object:
    """The Scale of an object."""
    status = found.get("status") or {}
    selector = {"selector": status["selector"]} if "selector" in status else {}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {name: found["metadata"][name] for name in _SHOWN},
        "spec": {"replicas": found["spec"].get("replicas", 1)},
        "status": {"replicas": status.get("replicas", 0), **selector},
    }


def patch_of(scale: Object) -> Object:
    """The merge patch of the object that a Scale, or a patch of one, asks for; InvalidError."""
    spec = scale.get("spec")
    replicas = spec.get("replicas") if isinstance(spec, dict) else None
    if type(replicas) is not int or replicas < 0:
        raise InvalidError(f"Scale is invalid: spec.replicas: {replicas!r}: must be at least 0")
    version = {"resourceVersion": scale["metadata"].get("resourceVersion", "")}
    return {"metadata": version, "spec": {"replicas": replicas}}
