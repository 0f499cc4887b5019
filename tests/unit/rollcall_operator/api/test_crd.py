"""The resource definitions: what Kubernetes and its tools rely on."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollcall_operator.api.crd import RESOURCES, RLJOB, ROLLOUTPOOL, crd, rendered
from rollcall_operator.api.rules import VALIDATIONS
from tests.apiserver.bad_manifests.case import Case
from tests.apiserver.bad_manifests.refused_at_apply import REFUSED_AT_APPLY

CRDS = Path(__file__).parents[4] / "crds"
PRESERVED = "x-kubernetes-preserve-unknown-fields"
KINDS = pytest.mark.parametrize("resource", RESOURCES, ids=lambda r: r.kind)


def version(resource: Any) -> Any:
    (only,) = crd(resource)["spec"]["versions"]
    return only


def nodes(schema: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every node of a schema with its path."""
    yield path, schema
    for name, sub in schema.get("properties", {}).items():
        yield from nodes(sub, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")


def spec_nodes(resource: Any) -> Iterator[tuple[str, Any]]:
    root = version(resource)["schema"]["openAPIV3Schema"]
    return nodes(root["properties"]["spec"], "spec")


def test_the_files_are_as_generated() -> None:
    assert {path.name: path.read_text() for path in CRDS.iterdir()} == rendered()


def test_the_text_reads_back_as_the_same_definition() -> None:
    texts = rendered().values()
    assert [yaml.safe_load(text) for text in texts] == [crd(resource) for resource in RESOURCES]


@KINDS
def test_plain_kubectl_apply_can_keep_it_in_an_annotation(resource: Any) -> None:
    assert len(json.dumps(crd(resource))) < 262_144 / 2


@KINDS
def test_it_has_a_short_name_a_category_and_a_status(resource: Any) -> None:
    spec = crd(resource)["spec"]
    assert spec["scope"] == "Namespaced"
    assert spec["names"]["categories"] == ["rollcall"]
    assert spec["names"]["shortNames"] == [{"RLJob": "rlj", "RolloutPool": "rpool"}[resource.kind]]
    assert version(resource)["subresources"]["status"] == {}


def test_pools_scale_and_jobs_do_not() -> None:
    assert version(ROLLOUTPOOL)["subresources"]["scale"] == {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    assert "scale" not in version(RLJOB)["subresources"]


@KINDS
def test_printer_columns_read_fields_that_there_are(resource: Any) -> None:
    root = version(resource)["schema"]["openAPIV3Schema"]
    known = {path for path, _ in nodes(root)}
    for column in version(resource)["additionalPrinterColumns"]:
        path = column["jsonPath"]
        assert path in known or path == ".metadata.creationTimestamp"


def test_the_columns_of_a_job() -> None:
    names = [column["name"] for column in version(RLJOB)["additionalPrinterColumns"]]
    assert names == ["Phase", "Step", "Version", "Reward", "Rollouts", "Epoch", "Stale", "Age"]


@KINDS
def test_the_schema_is_structural(resource: Any) -> None:
    root = version(resource)["schema"]["openAPIV3Schema"]
    for path, node in nodes(root):
        assert node.get("type") in {"object", "array", "string", "integer", "boolean"}, path
        for word in ("$ref", "anyOf", "allOf", "oneOf", "additionalProperties", "title", "const"):
            assert word not in node, path


@KINDS
def test_a_spec_has_no_floats(resource: Any) -> None:
    assert "number" not in {node["type"] for _, node in spec_nodes(resource)}


@KINDS
def test_everything_is_bounded_so_that_rules_stay_cheap(resource: Any) -> None:
    for path, node in spec_nodes(resource):
        if node["type"] == "string" and "enum" not in node:
            assert "maxLength" in node, path
        if node["type"] == "array":
            assert "maxItems" in node, path
        if node["type"] == "integer":
            assert "minimum" in node, path
            assert "maximum" in node, path


@KINDS
def test_every_rule_says_what_is_wrong(resource: Any) -> None:
    root = version(resource)["schema"]["openAPIV3Schema"]
    for path, node in nodes(root):
        for rule in node.get(VALIDATIONS, ()):
            assert len(rule["message"]) > 20, path
            assert len(rule["message"]) <= 2048, path


@KINDS
def test_every_field_of_a_spec_says_what_it_is(resource: Any) -> None:
    silent = {
        path
        for path, node in spec_nodes(resource)
        if "description" not in node and ".template." not in path and not path.endswith("[]")
    }
    assert not silent


@KINDS
def test_only_templates_network_rules_and_engine_settings_are_unread(resource: Any) -> None:
    for path, node in spec_nodes(resource):
        if node.get(PRESERVED):
            network_rules = path == "spec.networkPolicy.egress[]"
            assert network_rules or ".template" in path or path.endswith(".config"), path


def test_conditions_and_sync_groups_are_lists_with_keys() -> None:
    root = version(RLJOB)["schema"]["openAPIV3Schema"]
    status = dict(nodes(root["properties"]["status"], "status"))
    for path, key in (
        ("status.conditions", "type"),
        ("status.syncGroups", "name"),
        ("status.pools", "name"),
    ):
        assert status[path]["x-kubernetes-list-type"] == "map"
        assert status[path]["x-kubernetes-list-map-keys"] == [key]


def test_what_does_nothing_yet_is_not_there() -> None:
    known = {path.rpartition(".")[2] for path, _ in (*spec_nodes(RLJOB), *spec_nodes(ROLLOUTPOOL))}
    assert not known & {"scheduling", "autoscaling"}


def rules(resource: Any) -> Iterator[tuple[str, str]]:
    """Path and message of each CEL rule; the path of a list's items has no index."""
    for path, node in nodes(version(resource)["schema"]["openAPIV3Schema"]):
        for rule in node.get(VALIDATIONS, ()):
            yield f"{path}{rule.get('fieldPath', '')}".removeprefix("."), rule["message"]


def refused_by(case: Case, path: str, message: str) -> bool:
    """Whether a case expects this message at this path; a name's message holds the path itself."""
    where, *more = case.says
    if re.sub(r"\[\d+\]", "[]", where) == path:
        return more[0].lower() in message.lower()
    return path == "" and where in message


@KINDS
def test_each_rule_refuses_one_of_the_bad_manifests(resource: Any) -> None:
    """A rule that the integration tests never see broken might as well not be there."""
    cases = [case for case in REFUSED_AT_APPLY if case.kind == resource.kind]
    untested = [rule for rule in rules(resource) if not any(refused_by(c, *rule) for c in cases)]
    assert not untested
