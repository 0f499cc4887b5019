"""Pod templates: kept whole and unread by the schema.

A full PodSpec schema makes a CRD of megabytes. Instead the API server keeps whatever the template
says, and checks it strictly when the operator applies the StatefulSet or Deployment made from it.
"""

from typing import Annotated, Any

from pydantic import WithJsonSchema

from rollcall_operator.api.rules import Rule

_KEEP = {"x-kubernetes-preserve-unknown-fields": True}
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "A pod template as in a Deployment. The operator adds what a worker needs.",
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


def _has_containers(template: dict[str, Any]) -> bool:
    spec = template.get("spec")
    containers = spec.get("containers") if isinstance(spec, dict) else None
    return (
        isinstance(containers, list)
        and 1 <= len(containers) <= 32
        and all(isinstance(c, dict) and c.get("name") and c.get("image") for c in containers)
        and isinstance(template.get("metadata", {}), dict)
    )


PodTemplate = Annotated[
    dict[str, Any],
    Rule(
        message="needs spec.containers, a list of 1 to 32 containers with a name and an image each",
        holds=_has_containers,
    ),
    WithJsonSchema(_SCHEMA),
]
