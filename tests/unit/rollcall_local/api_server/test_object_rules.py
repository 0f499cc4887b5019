"""Which metadata and which status are taken."""

from typing import Any

import pytest

from rollcall_local.api_server.errors import InvalidError
from rollcall_local.api_server.object_rules import check_metadata, check_status

OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"name": "a.b-c.0"},
        {"name": "a" * 240},
        {"namespace": "a-0"},
        {"labels": {"a": "", "rollcall.dev/job": "a.b_C-0", "A_b.c": "x" * 63}},
        {"annotations": {"a": "any text / at all"}},
        {"finalizers": ["a/b"]},
        {"ownerReferences": [{**OWNER, "controller": True}]},
        {"labels": None, "annotations": None, "finalizers": None, "ownerReferences": None},
        {"managedFields": [], "selfLink": ""},
    ],
)
def test_what_is_well_formed_is_taken(more: dict[str, Any]) -> None:
    check_metadata("Pod", {"name": "p", "namespace": "ns", **more})


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"name": 5}, "metadata.name: must be a string"),
        ({"namespace": "a.b"}, "metadata.namespace: must be"),
        ({"namespace": "a" * 64}, "metadata.namespace: string should have at most 63"),
        ({"labels": []}, "metadata.labels: must be a map"),
        ({"labels": {"a": "b c"}}, "metadata.labels.a: must be at most 63 letters"),
        ({"labels": {"a": "x" * 64}}, "metadata.labels.a: must be at most 63 letters"),
        ({"labels": {"a/b/c": "x"}}, r"metadata.labels.a/b/c.\[key\]: must be letters"),
        ({"annotations": {"a": None}}, "metadata.annotations.a: must be a string"),
        ({"finalizers": "a/b"}, "metadata.finalizers: must be a list"),
        ({"ownerReferences": [{**OWNER, "uid": 5}]}, r"metadata.ownerReferences\[0\].uid: must be"),
        ({"ownerReferences": [{"uid": "u"}]}, r"ownerReferences\[0\].name: is required"),
    ],
)
def test_what_is_not_is_named(more: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        check_metadata("Pod", {"name": "p", "namespace": "ns", **more})


def test_all_mistakes_are_named() -> None:
    with pytest.raises(InvalidError) as refused:
        check_metadata("Pod", {"name": "P", "labels": {"a": 5}})
    assert str(refused.value).startswith('Pod "P" is invalid: metadata.name: must be lower-case')
    assert "; metadata.labels.a: must be a string" in str(refused.value)


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"phase": "Running", "replicas": 5, "more": [1]},
        {"conditions": [{"type": "Ready", "status": "True", "reason": "R"}]},
        {"conditions": [], "containerStatuses": [{"name": "c", "ready": True}]},
    ],
)
def test_a_status_has_conditions_that_can_be_read(status: dict[str, Any]) -> None:
    check_status("Pod", "p", status)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (5, 'Pod "p" is invalid: status: must be a map'),
        ({"phase": 5}, "status.phase: must be a string"),
        ({"conditions": {}}, "status.conditions: must be a list"),
        ({"conditions": [{"status": "True"}]}, r"status.conditions\[0\].type: is required"),
        ({"conditions": ["Ready"]}, r"status.conditions\[0\]: must be a map"),
        ({"containerStatuses": [{}]}, r"status.containerStatuses\[0\].name: is required"),
    ],
)
def test_a_status_that_cannot_be_read_is_not_taken(status: Any, message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        check_status("Pod", "p", status)
