"""CustomResourceDefinitions as structural schemas, made from the models."""

from dataclasses import dataclass
from typing import Any

from pydantic.json_schema import models_json_schema

from rollcall_operator.api import yaml_text
from rollcall_operator.api.labels import GROUP, VERSION
from rollcall_operator.api.rljob import JOB_RULES, RLJobSpec
from rollcall_operator.api.rolloutpool import POOL_RULES, RolloutPoolSpec
from rollcall_operator.api.rules import Model, Rule, add_rules
from rollcall_operator.api.status import RLJobStatus, RolloutPoolStatus

Schema = dict[str, Any]
_DROPPED = {"title", "additionalProperties", "$defs"}
_INT32_MAX = 2_147_483_647
_FIRST = ("description", "type", "format", "default", "enum")
_LAST = ("required", "properties", "items")


@dataclass(frozen=True, slots=True)
class CustomResource:
    """One custom resource. `columns` are (name, type, JSON path, description) of kubectl get.

    `selectable` are the JSON paths that a field selector may name.
    """

    kind: str
    short_name: str
    description: str
    spec: type[Model]
    status: type[Model]
    rules: tuple[Rule, ...]
    columns: tuple[tuple[str, str, str, str], ...]
    scale: dict[str, str] | None = None
    selectable: tuple[str, ...] = ()

    @property
    def plural(self) -> str:
        """Name in URLs."""
        return f"{self.kind.lower()}s"

    @property
    def file_name(self) -> str:
        """Name of the generated file."""
        return f"{GROUP}_{self.plural}.yaml"


RLJOB = CustomResource(
    kind="RLJob",
    short_name="rlj",
    description="A reinforcement-learning run: a trainer, and rollouts that generate its samples.",
    spec=RLJobSpec,
    status=RLJobStatus,
    rules=JOB_RULES,
    columns=(
        ("Phase", "string", ".status.phase", "Phase of the job"),
        ("Step", "integer", ".status.progress.step", "Optimizer steps completed"),
        ("Version", "integer", ".status.progress.weightVersion", "Latest published weight version"),
        ("Reward", "string", ".status.progress.rolloutReward", "Mean reward of the latest samples"),
        ("Rollouts", "string", ".status.rollouts", "Ready rollouts out of wanted rollouts"),
        ("Epoch", "integer", ".status.epoch", "Epoch of the job's roster"),
        ("Stale", "date", ".status.staleSince", "Time since the last report, if one is missing"),
        ("Age", "date", ".metadata.creationTimestamp", "Time since creation"),
    ),
)
ROLLOUTPOOL = CustomResource(
    kind="RolloutPool",
    short_name="rpool",
    description="An elastic pool of rollouts that generate samples for one RLJob. It can be "
    "applied, scaled and deleted while the job runs.",
    spec=RolloutPoolSpec,
    status=RolloutPoolStatus,
    rules=POOL_RULES,
    columns=(
        ("Job", "string", ".spec.jobRef.name", "RLJob that the pool serves"),
        ("Desired", "integer", ".spec.replicas", "Wanted number of rollouts"),
        ("Ready", "integer", ".status.readyReplicas", "Ready rollouts"),
        ("InSync", "integer", ".status.inSync", "Rollouts that serve the current weights"),
        ("Version", "integer", ".status.weightVersion.min", "Lowest weight version served"),
        ("Epoch", "integer", ".status.epoch", "Epoch of the job's roster"),
        ("Stale", "date", ".status.staleSince", "Time since the last report, if one is missing"),
        ("Age", "date", ".metadata.creationTimestamp", "Time since creation"),
    ),
    scale={
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    },
    selectable=(".spec.jobRef.name",),
)
RESOURCES = (RLJOB, ROLLOUTPOOL)


def structural(model: type[Model]) -> Schema:
    """The model as a structural schema: no references, a type at every node."""
    _, definitions = models_json_schema([(model, "validation")], by_alias=True)
    defs = definitions["$defs"]
    return _node(defs[model.__name__], defs)


def _node(node: Schema, defs: dict[str, Schema]) -> Schema:
    """One schema node with references resolved and what structural schemas forbid left out."""
    node = _inlined(node, defs)
    out = {key: value for key, value in node.items() if key not in _DROPPED}
    if "const" in out:
        out["enum"] = [out.pop("const")]
    if out.get("default", 0) in (None, []):
        del out["default"]
    if "properties" in node:
        out["properties"] = {name: _node(sub, defs) for name, sub in node["properties"].items()}
    elif node.get("type") == "object":
        out["x-kubernetes-preserve-unknown-fields"] = True
        out.pop("maxProperties", None)
    if "items" in node:
        out["items"] = _node(node["items"], defs)
    if node.get("type") == "integer":
        out["format"] = "int32" if node.get("maximum", _INT32_MAX + 1) <= _INT32_MAX else "int64"
    if "description" in out:
        out["description"] = " ".join(out["description"].split())
    return _ordered(out)


def _ordered(node: Schema) -> Schema:
    """Keys in the order that people read schemas in."""
    middle = [key for key in node if key not in {*_FIRST, *_LAST}]
    return {key: node[key] for key in (*_FIRST, *middle, *_LAST) if key in node}


def _inlined(node: Schema, defs: dict[str, Schema]) -> Schema:
    """Follow $ref and take the branch that is not null; what stands beside it wins."""
    beside = dict(node)
    if "$ref" in beside:
        target = defs[beside.pop("$ref").removeprefix("#/$defs/")]
        return {**_inlined(target, defs), **beside}
    if "anyOf" in beside:
        branches = [b for b in beside.pop("anyOf") if b.get("type") != "null"]
        if len(branches) != 1:
            raise ValueError(f"only optional fields may have alternatives: {node}")
        return {**_inlined(branches[0], defs), **beside}
    return beside


def crd(resource: CustomResource) -> Schema:
    """The CustomResourceDefinition of one resource."""
    schema: Schema = {
        "type": "object",
        "description": resource.description,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": structural(resource.spec),
            "status": structural(resource.status),
        },
    }
    subresources: Schema = {"status": {}}
    if resource.scale:
        subresources["scale"] = resource.scale
    selectable = {"selectableFields": [{"jsonPath": path} for path in resource.selectable]}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": resource.kind,
                "listKind": f"{resource.kind}List",
                "plural": resource.plural,
                "singular": resource.kind.lower(),
                "shortNames": [resource.short_name],
                "categories": ["rollcall"],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": [
                        {"name": name, "type": kind, "jsonPath": path, "description": text}
                        for name, kind, path, text in resource.columns
                    ],
                    **(selectable if resource.selectable else {}),
                    "schema": {"openAPIV3Schema": add_rules(schema, resource.rules)},
                    "subresources": subresources,
                }
            ],
        },
    }


def rendered() -> dict[str, str]:
    """The files of crds/ by name; the same models always give the same text."""
    return {
        resource.file_name: "# Generated by `rollcall-operator crds`; do not edit.\n"
        + yaml_text.dump(crd(resource))
        for resource in RESOURCES
    }
