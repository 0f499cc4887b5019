"""The fields of a resource with their descriptions, as `kubectl explain` shows them."""

import textwrap
from collections.abc import Iterator
from typing import Any

from rollcall_operator.api.crd import CustomResource, crd

Schema = dict[str, Any]


def render(resource: CustomResource) -> str:
    """Every field below `spec` and `status`: path, type, constraints and description."""
    schema = crd(resource)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    lines = [f"{resource.kind}: {schema['description']}", ""]
    for part in ("spec", "status"):
        for path, node in fields(schema["properties"][part], part):
            lines.append(f"{path} <{type_of(node)}>{_constraints(node)}")
            text = node.get("description", "")
            lines += textwrap.wrap(text, 96, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines) + "\n"


def fields(node: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    """A schema and all schemas below it, each with its path; a pod template is not entered."""
    yield path, node
    if path.endswith("template"):
        return
    inner = node.get("items", node)
    for name, below in (inner.get("properties") or {}).items():
        yield from fields(below, f"{path}.{name}")


def type_of(node: Schema) -> str:
    """The type as kubectl writes it: Object, []Object, string, []integer, ..."""
    kind = node.get("type", "Object")
    if kind == "array":
        return f"[]{type_of(node['items'])}"
    return "Object" if kind == "object" else str(kind)


def _constraints(node: Schema) -> str:
    found = []
    if "enum" in node:
        found.append("one of " + ", ".join(str(value) or '""' for value in node["enum"]))
    if "minimum" in node and "maximum" in node:
        found.append(f"{node['minimum']} to {node['maximum']}")
    if node.get("default") not in (None, {}):
        found.append(f"default {node['default']!r}")
    return f" ({'; '.join(found)})" if found else ""
