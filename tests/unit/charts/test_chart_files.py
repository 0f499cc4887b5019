"""The chart's files: valid by themselves, so that a broken one fails without a cluster or Helm."""

import json
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts" / "rollcall-operator"


@pytest.mark.parametrize(
    "name",
    [
        *(f"files/dashboards/{name}.json" for name in ("fleet", "job", "weight-sync")),
        "values.schema.json",
    ],
)
def test_a_json_file_is_valid(name: str) -> None:
    try:
        loaded = json.loads((CHART / name).read_text())
    except ValueError as error:
        pytest.fail(f"{name}: {error}")
    assert isinstance(loaded, dict)


def test_values_that_the_schema_does_not_know_are_refused() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert schema["additionalProperties"] is False
    assert set(values) <= set(schema["properties"])
    for name, part in schema["properties"].items():
        if "properties" in part:
            assert part["additionalProperties"] is False, name
            assert set(values.get(name) or ()) <= set(part["properties"]), name


def test_the_definitions_are_the_generated_ones() -> None:
    copies = {path.name: path.read_text() for path in (CHART / "files" / "crds").iterdir()}
    assert copies == {path.name: path.read_text() for path in (ROOT / "crds").iterdir()}


TOUCHES = "Running jobs: "


def test_values_that_touch_running_jobs_are_marked_and_printed_by_an_upgrade() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    described = {name: part.get("description", "") for name, part in schema["properties"].items()}
    marked = {name: text for name, text in described.items() if text.startswith(TOUCHES)}
    assert marked.keys() >= {"image", "workerUser", "preemptionTaints", "jobNetworkPolicies"}
    values = " ".join((CHART / "values.yaml").read_text().replace("\n# ", " ").split())
    assert values.count(TOUCHES) == len(marked)
    notes = (CHART / "templates" / "NOTES.txt").read_text()
    printed = " ".join(notes.partition("{{- if .Release.IsUpgrade }}")[2].split())
    for name, text in marked.items():
        assert text in values, name
        assert f"- {name}: {text.removeprefix(TOUCHES)}" in printed, name
