"""Pod templates: kept whole and unread by the schema.

A full PodSpec schema makes a CRD of megabytes. Instead the API server keeps whatever the template
says, and checks it strictly when the operator applies the StatefulSet or Deployment made from it.
"""

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import AfterValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

_KEEP = {"x-kubernetes-preserve-unknown-fields": True}
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "Pod template, as in a Deployment.",
    **_KEEP,
    "required": ["spec"],
    "properties": {
        "metadata": {"type": "object", **_KEEP},
        "spec": {
            "type": "object",
            **_KEEP,
            "required": ["containers"],
            "properties": {
                "containers": {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": 32,
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                    "items": {
                        "type": "object",
                        **_KEEP,
                        "required": ["name", "image"],
                        "properties": {
                            "name": {"type": "string", "minLength": 1, "maxLength": 63},
                            "image": {"type": "string", "minLength": 1, "maxLength": 1024},
                        },
                    },
                },
            },
        },
    },
}


def _checked(template: dict[str, Any]) -> dict[str, Any]:
    """The checks of the schema, for `rollcall-operator plan`."""
    for path, problem in _mistakes(template):
        raise PydanticCustomError("rule", "{text}", {"text": problem, "path": path})
    return template


def _mistakes(template: dict[str, Any]) -> Iterator[tuple[str, str]]:
    spec = template.get("spec")
    if not isinstance(template.get("metadata", {}), dict):
        yield ".metadata", "must be a map"
    if not isinstance(spec, dict):
        yield ".spec", "is required; add it"
        return
    containers = spec.get("containers")
    if not isinstance(containers, list) or not 1 <= len(containers) <= 32:
        yield ".spec.containers", "is required; add a list of 1 to 32 containers"
        return
    for index, container in enumerate(containers):
        for key in ("name", "image"):
            value = container.get(key) if isinstance(container, dict) else None
            if not isinstance(value, str) or not value:
                yield f".spec.containers[{index}].{key}", "is required; add it"
    names = [container.get("name") for container in containers if isinstance(container, dict)]
    if len(set(names)) < len(names):
        yield ".spec.containers", "each name may occur once only"


PodTemplate = Annotated[dict[str, Any], AfterValidator(_checked), WithJsonSchema(_SCHEMA)]
