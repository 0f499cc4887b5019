"""The reference of both resources as Markdown, made from the same models as their definitions."""

import json
from collections.abc import Iterator
from dataclasses import Field, fields
from typing import Any

from rollcall_operator.api.crd import RESOURCES, CustomResource, crd
from rollcall_operator.api.declared_settings import docstrings
from rollcall_operator.api.labels import GROUP, VERSION
from rollcall_protocol.settings_reader import camel_case
from rollcall_protocol.train_settings import BUILT_IN, EngineSettings, LoopSettings

Schema = dict[str, Any]

_HEAD = f"""\
# Reference

Every field of `{GROUP}/{VERSION}`, generated from the operator's models by
`rollcall-operator reference`; do not edit. `kubectl explain rljob.spec` says the same.
[api.md](api.md) says how the fields are used.
"""
_ENGINES = """
## Training engines

Settings in `spec.trainer.engine.config` of an RLJob, and options `--set` of `rollcall-train sft`.
An engine of a third party says itself which of them it has, and has others. A number with a
fraction is a decimal string.
"""
_LINE = "|---|---|---|---|"
_LIMITS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
}


def reference() -> str:
    """The whole page; the same models always give the same text."""
    return _HEAD + "".join(_of_resource(resource) for resource in RESOURCES) + _of_engines()


def _of_engines() -> str:
    """The settings of `spec.trainer.engine.config`, which the definitions leave open."""
    rows = [
        f"| `{camel_case(item.name)}` | {_default(item)} | {_engines(item.name)} "
        f"| {_cell(docstrings(settings)[item.name].rstrip('.'))} |"
        for settings in (LoopSettings, EngineSettings)
        for item in fields(settings)
    ]
    return "\n".join([_ENGINES, "| setting | default | engines | what it is |", _LINE, *rows, ""])


def _default(item: Field[Any]) -> str:
    return _value(item.default) if item.default != "" else ""


def _engines(setting: str) -> str:
    having = [name for name, known in BUILT_IN.items() if setting in known]
    return "all" if len(having) in {0, len(BUILT_IN)} else ", ".join(having)


def _of_resource(resource: CustomResource) -> str:
    (version,) = crd(resource)["spec"]["versions"]
    properties = version["schema"]["openAPIV3Schema"]["properties"]
    parts = [f"\n## {resource.kind}\n\n{resource.description}\n"]
    for name in ("spec", "status"):
        parts += [_section(path, node) for path, node in _objects(name, properties[name])]
    return "".join(parts)


def _objects(path: str, node: Schema) -> Iterator[tuple[str, Schema]]:
    """The objects with fields of their own, each before those inside it; those of a pod template
    are Kubernetes' own, and described there.
    """
    if node.get("x-kubernetes-preserve-unknown-fields"):
        return
    if "properties" in node:
        yield path, node
        for name, inner in node["properties"].items():
            yield from _objects(f"{path}.{name}", inner)
    elif "items" in node:
        yield from _objects(f"{path}[]", node["items"])


def _section(path: str, node: Schema) -> str:
    lines = [f"\n### {path}\n"]
    if node.get("description"):
        lines.append(f"{_cell(node['description'])}\n")
    rules = list(_rules(node))
    if rules:
        lines += [*rules, ""]
    lines += ["| field | type | default | what it is |", _LINE]
    required = set(node.get("required", ()))
    lines += [_row(name, inner, name in required) for name, inner in node["properties"].items()]
    return "\n".join([*lines, ""])


def _rules(node: Schema) -> Iterator[str]:
    """What must hold of an object; fields of which the same is said stand together."""
    fields: dict[str, list[str]] = {}
    for rule in node.get("x-kubernetes-validations", ()):
        field = rule.get("fieldPath", "").removeprefix(".")
        fields.setdefault(rule["message"], []).extend([f"`{field}`"] if field else [])
    for message, named in fields.items():
        yield f"- {', '.join(named)}{': ' if named else ''}{_cell(message)}"


def _row(name: str, node: Schema, required: bool) -> str:
    default = "required" if required else _value(node["default"]) if "default" in node else ""
    words = [node.get("description", ""), *_limits(node)]
    words += [_cell(rule["message"]) for rule in _own_rules(node)]
    said = "; ".join(word.rstrip(".") for word in words if word)
    return f"| `{name}` | {_type(node)} | {default} | {_cell(said)} |"


def _own_rules(node: Schema) -> list[Schema]:
    """Of a value; those of an object stand above its own table."""
    return [] if "properties" in node else node.get("x-kubernetes-validations", [])


def _limits(node: Schema) -> Iterator[str]:
    if "enum" in node:
        yield "one of " + ", ".join(_value(value) for value in node["enum"])
    for key, words in _LIMITS.items():
        if key in node:
            yield words.format(node[key])


def _type(node: Schema) -> str:
    if node["type"] == "array":
        return f"list of {_type(node['items'])}"
    if node.get("format") == "date-time":
        return "time"
    return str(node["type"])


def _value(value: Any) -> str:
    if isinstance(value, str):
        return f"`{value or repr(value)}`"
    return f"`{json.dumps(value)}`"


def _cell(text: str) -> str:
    """What a table's cell takes: no line break, no bar, nothing that reads as HTML."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "\\<")
