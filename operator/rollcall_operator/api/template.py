"""Pod templates: kept whole and unread by the schema.

A full PodSpec schema makes a CRD of megabytes. Instead the API server keeps whatever the template
says, and checks it strictly when the operator applies the StatefulSet or Deployment made from it.
The schema has the types of what the operator itself reads and completes.
"""

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import AfterValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

_Schema = dict[str, Any]

_KEEP: _Schema = {"x-kubernetes-preserve-unknown-fields": True}
_LONG_TEXT: _Schema = {"type": "string", "maxLength": 262_144}
_TEXT: _Schema = {"type": "string", "nullable": True, "maxLength": 4096}
_WHOLE_NUMBER: _Schema = {
    "type": "integer",
    "nullable": True,
    "minimum": 0,
    "maximum": 2**31 - 1,
}
_TEXTS_BY_NAME: _Schema = {
    "type": "object",
    "nullable": True,
    "maxProperties": 1024,
    "additionalProperties": _LONG_TEXT,
}


def _object(required: tuple[str, ...] = (), **properties: _Schema) -> _Schema:
    made: _Schema = {"type": "object", **_KEEP, "properties": properties}
    return {**made, "required": list(required)} if required else made


def _list_of(items: _Schema) -> _Schema:
    return {"type": "array", "nullable": True, "maxItems": 1024, "items": items}


def _name(longest: int) -> _Schema:
    return {"type": "string", "minLength": 1, "maxLength": longest}


_CONTAINER = _object(
    required=("name", "image"),
    name=_name(63),
    image=_name(1024),
    command=_list_of(_LONG_TEXT),
    args=_list_of(_LONG_TEXT),
    env=_list_of(_object(("name",), name=_name(1024))),
    ports=_list_of(_object(containerPort=_WHOLE_NUMBER)),
    volumeMounts=_list_of(_object(name=_TEXT, mountPath=_TEXT)),
    securityContext={**_object(runAsUser=_WHOLE_NUMBER), "nullable": True},
)
_VOLUME = _object(
    required=("name",),
    name=_name(63),
    emptyDir={**_object(medium=_TEXT), "nullable": True},
    configMap={**_object(name=_TEXT), "nullable": True},
)
_CONTAINERS: _Schema = {
    "type": "array",
    "minItems": 1,
    "maxItems": 32,
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["name"],
    "items": _CONTAINER,
}
_POD = _object(
    required=("containers",),
    containers=_CONTAINERS,
    initContainers=_list_of(_CONTAINER),
    volumes=_list_of(_VOLUME),
    tolerations=_list_of(_object(key=_TEXT, effect=_TEXT)),
    readinessGates=_list_of(_object()),
    terminationGracePeriodSeconds=_WHOLE_NUMBER,
    securityContext={**_object(runAsUser=_WHOLE_NUMBER), "nullable": True},
)
_METADATA = {**_object(labels=_TEXTS_BY_NAME, annotations=_TEXTS_BY_NAME), "nullable": True}
_SCHEMA: _Schema = {
    **_object(required=("spec",), metadata=_METADATA, spec=_POD),
    "description": "Pod template, as in a Deployment.",
}

_TYPES: dict[str, tuple[type, str]] = {
    "object": (dict, "must be a map"),
    "array": (list, "must be a list"),
    "string": (str, "must be a string; write it in quotes"),
    "integer": (int, "must be a whole number"),
}


def _checked(template: dict[str, Any]) -> dict[str, Any]:
    """The checks of the schema, for `rollcall-operator plan`."""
    for path, problem in _mistakes(template, _SCHEMA, ""):
        raise PydanticCustomError("rule", "{text}", {"text": problem, "path": path})
    return template


def _mistakes(value: Any, schema: _Schema, path: str) -> Iterator[tuple[str, str]]:
    """What the API server would refuse: (path, what is wrong)."""
    type_, must = _TYPES[schema["type"]]
    if value is None and schema.get("nullable"):
        return
    if not isinstance(value, type_) or (type_ is int and isinstance(value, bool)):
        yield path, must
    elif isinstance(value, dict):
        yield from _mistakes_in_map(value, schema, path)
    elif isinstance(value, list):
        least, most = schema.get("minItems", 0), schema.get("maxItems", len(value))
        if not least <= len(value) <= most:
            yield path, f"must have {least} to {most} entries"
        for index, item in enumerate(value):
            yield from _mistakes(item, schema["items"], f"{path}[{index}]")
        yield from _repeated(value, schema, path)
    elif isinstance(value, str):
        least, most = schema.get("minLength", 0), schema.get("maxLength", len(value))
        if not least <= len(value) <= most:
            yield path, f"must have {least} to {most} characters"
    elif not schema["minimum"] <= value <= schema["maximum"]:
        yield path, f"must be {schema['minimum']} to {schema['maximum']}"


def _mistakes_in_map(
    value: dict[str, Any], schema: _Schema, path: str
) -> Iterator[tuple[str, str]]:
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{path}.{name}", "is required; add it"
    properties, others = schema.get("properties", {}), schema.get("additionalProperties")
    for name, inner in value.items():
        if (expected := properties.get(name, others)) is not None:
            yield from _mistakes(inner, expected, f"{path}.{name}")


def _repeated(value: list[Any], schema: _Schema, path: str) -> Iterator[tuple[str, str]]:
    keys = schema.get("x-kubernetes-list-map-keys")
    if keys and all(isinstance(item, dict) for item in value):
        identities = [tuple(str(item.get(key)) for key in keys) for item in value]
        if len(set(identities)) < len(identities):
            yield path, f"each {keys[0]} may occur once only"


PodTemplate = Annotated[dict[str, Any], AfterValidator(_checked), WithJsonSchema(_SCHEMA)]
