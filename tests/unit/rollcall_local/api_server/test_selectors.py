"""Label selectors in all forms of Kubernetes' documentation, and field selectors."""

from typing import Any

import pytest

from rollcall_local.api_server.errors import MalformedRequestError
from rollcall_local.api_server.selectors import by_fields, by_labels

OBJECTS: dict[str, dict[str, str] | None] = {
    "a": {"environment": "production", "tier": "frontend"},
    "b": {"environment": "qa", "tier": "backend", "partition": "x"},
    "c": {"tier": "", "rollcall.dev/job": "reverse"},
    "none": None,
}


def body(labels: dict[str, str] | None) -> dict[str, Any]:
    return {"metadata": {} if labels is None else {"labels": labels}}


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ("", ["a", "b", "c", "none"]),
        ("environment=production", ["a"]),
        ("environment==production", ["a"]),
        ("environment = production", ["a"]),
        ("tier!=frontend", ["b", "c", "none"]),
        ("tier != frontend", ["b", "c", "none"]),
        ("tier=", ["c"]),
        ("environment=production,tier!=backend", ["a"]),
        ("environment in (production, qa)", ["a", "b"]),
        ("environment in (production)", ["a"]),
        ("environment in(production,qa)", ["a", "b"]),
        ("tier notin (frontend, backend)", ["c", "none"]),
        ("environment,environment notin (frontend)", ["a", "b"]),
        ("environment in (production,qa),tier in (backend)", ["b"]),
        ("partition", ["b"]),
        ("!partition", ["a", "c", "none"]),
        ("partition,environment notin (qa)", []),
        ("rollcall.dev/job", ["c"]),
        ("rollcall.dev/job=reverse", ["c"]),
    ],
)
def test_what_a_label_selector_selects(selector: str, selected: list[str]) -> None:
    matches = by_labels(selector)
    assert [name for name, labels in OBJECTS.items() if matches(body(labels))] == selected


@pytest.mark.parametrize(
    "selector",
    [
        "a in b",
        "a in (b",
        "a in b)",
        "a=b=c",
        "=b",
        "a,,b",
        "a,",
        ",a",
        "!a=b",
        "!a in (b)",
        "a>5",
        "a b",
        "a=b c",
        "(a)",
        "a in ((b))",
    ],
)
def test_a_label_selector_that_cannot_be_read_is_named(selector: str) -> None:
    with pytest.raises(MalformedRequestError, match="labelSelector"):
        by_labels(selector)


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ("", True),
        ("metadata.name=p", True),
        ("metadata.name==p", True),
        ("metadata.name!=p", False),
        ("spec.nodeName=", True),
        ("spec.nodeName!=n", True),
        ("status.phase=Running,metadata.name=p", True),
        ("status.phase=Running,metadata.name=q", False),
        ("regarding.uid=5", True),
        ("metadata.name.more=", True),
    ],
)
def test_what_a_field_selector_selects(selector: str, selected: bool) -> None:
    found = {
        "metadata": {"name": "p"},
        "status": {"phase": "Running"},
        "regarding": {"uid": 5},
    }
    assert by_fields(selector)(found) is selected


@pytest.mark.parametrize("selector", ["a", "a=b=c", "a in (b)"])
def test_a_field_selector_that_cannot_be_read_is_named(selector: str) -> None:
    with pytest.raises(MalformedRequestError, match="fieldSelector"):
        by_fields(selector)
