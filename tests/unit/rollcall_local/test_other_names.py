"""What other trainers call is a field that an RLJob has."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollcall_local.other_names import OTHER_TRAINERS
from rollcall_protocol.settings_reader import camel_case
from rollcall_protocol.train_settings import EngineSettings, LoopSettings
from rollcall_protocol.vllm_settings import VllmSettings

CRD = Path(__file__).parents[3] / "crds" / "rollcall.dev_rljobs.yaml"
SETTINGS = {
    "spec.trainer.engine.config.": {
        camel_case(field.name) for kind in (EngineSettings, LoopSettings) for field in fields(kind)
    },
    "spec.rollouts.engine.config.": {
        "concurrency",
        *(camel_case(field.name) for field in fields(VllmSettings)),
    },
}


@pytest.fixture(scope="module")
def schema() -> Mapping[str, Any]:
    found = yaml.load(CRD.read_text(), Loader=yaml.CSafeLoader)
    root = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert isinstance(root, dict)
    return root


def has(schema: Mapping[str, Any], path: str) -> bool:
    """Whether the schema has the field; items of lists have no index."""
    for begin, names in SETTINGS.items():
        if path.startswith(begin):
            return path.removeprefix(begin) in names
    node = schema
    for part in path.split("."):
        node = node.get("items", node).get("properties", {}).get(part)
        if node is None:
            return False
    return True


@pytest.mark.parametrize("trainer", OTHER_TRAINERS)
def test_each_name_is_that_of_a_field(schema: Mapping[str, Any], trainer: str) -> None:
    names = OTHER_TRAINERS[trainer].names
    assert [path for path in names if not has(schema, path)] == []
    assert all(names.values())


def test_a_field_that_is_not_there_is_found(schema: Mapping[str, Any]) -> None:
    assert not has(schema, "spec.algorithm.settings.clip")
    assert not has(schema, "spec.trainer.engine.config.precisions")
    assert has(schema, "spec.rollouts.engine.name")
