"""The reference has every field of both resources, once, with what the definitions say of it."""

import re
from dataclasses import fields as dataclass_fields
from typing import Any

import pytest

from rollcall_operator.api.crd import RESOURCES, crd
from rollcall_operator.api.reference import reference
from rollcall_protocol.settings_reader import camel_case
from rollcall_protocol.train_settings import EngineSettings, LoopSettings

PAGE = reference()
PRESERVED = "x-kubernetes-preserve-unknown-fields"


def fields(node: dict[str, Any]) -> int:
    """How many fields there are below a node; those of pod templates are Kubernetes' own."""
    if PRESERVED in node:
        return 0
    inner = [*node.get("properties", {}).values(), *([node["items"]] if "items" in node else [])]
    return len(node.get("properties", ())) + sum(fields(one) for one in inner)


def test_every_field_has_one_row() -> None:
    wanted = 0
    for resource in RESOURCES:
        (version,) = crd(resource)["spec"]["versions"]
        properties = version["schema"]["openAPIV3Schema"]["properties"]
        wanted += fields(properties["spec"]) + fields(properties["status"])
    definitions = PAGE.partition("## Training engines")[0]
    assert len(re.findall(r"^\| `", definitions, flags=re.MULTILINE)) == wanted


@pytest.mark.parametrize("settings", [EngineSettings, LoopSettings])
def test_every_setting_of_training_engines_has_a_row_that_says_what_it_is(settings: Any) -> None:
    for item in dataclass_fields(settings):
        row = rf"^\| `{camel_case(item.name)}` \| `.+` \| .+ \| .{{20,}} \|$"
        assert re.search(row, PAGE, flags=re.MULTILINE), item.name


def test_a_row_has_type_default_and_limits() -> None:
    assert "| `suspend` | boolean | `false` | true: all pods of the job are deleted." in PAGE
    assert "| `model` | object | required | The model to train |" in PAGE
    assert re.search(r"\| `rollouts` \| list of object \|  \| .*; at least 1 items; at most", PAGE)


def test_rules_name_the_fields_that_they_hold_for() -> None:
    assert "- `model`: is immutable (checkpoints hold its weights); create another RLJob\n" in PAGE
    assert re.search(r"^- `data`, `reward`, .*: is immutable while the job", PAGE, re.MULTILINE)
    assert "- must have exactly one of algorithm (with rollouts and reward) and supervised" in PAGE


def test_a_table_is_whole() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 5 for row in rows)
    assert "<job>" not in PAGE.replace("\\<job>", "")
