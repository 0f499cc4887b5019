"""Merge patches, as RFC 7386 has them, and the part of strategic ones that is known here."""

import copy
from typing import Any

import pytest

from rollcall_local.api_server.errors import MalformedRequestError
from rollcall_local.api_server.patches import merge, strategic_merge


@pytest.mark.parametrize(
    ("value", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_the_examples_of_the_rfc(value: Any, patch: Any, result: Any) -> None:
    before = copy.deepcopy(value)
    assert merge(value, patch) == result
    assert value == before, "what was there is not changed"


def test_a_strategic_patch_of_one_condition_leaves_the_others() -> None:
    status = {"conditions": [{"type": "A", "status": "True"}, {"type": "B", "status": "True"}]}
    patch = {"conditions": [{"type": "B", "status": "False"}, {"type": "C", "status": "True"}]}
    assert strategic_merge(status, patch)["conditions"] == [
        {"type": "A", "status": "True"},
        {"type": "B", "status": "False"},
        {"type": "C", "status": "True"},
    ]
    assert merge(status, patch) == patch, "a merge patch has the whole list"


def test_a_strategic_patch_replaces_other_lists() -> None:
    assert strategic_merge({"args": ["a", "b"]}, {"args": ["c"]}) == {"args": ["c"]}


def test_a_strategic_patch_removes_what_is_null() -> None:
    assert strategic_merge({"a": {"b": 1, "c": 2}}, {"a": {"b": None}}) == {"a": {"c": 2}}


@pytest.mark.parametrize("entry", [{"status": "True"}, {"type": 5}, "A"])
def test_an_entry_of_a_shared_list_names_itself(entry: Any) -> None:
    with pytest.raises(MalformedRequestError, match="needs a type"):
        strategic_merge({}, {"conditions": [entry]})


@pytest.mark.parametrize("before", [5, {"a": 1}, [5], [{"status": "True"}]])
def test_a_shared_list_that_is_none_is_not_merged(before: Any) -> None:
    with pytest.raises(MalformedRequestError, match=r"a type$"):
        strategic_merge({"conditions": before}, {"conditions": [{"type": "A"}]})


@pytest.mark.parametrize("directive", ["$patch", "$setElementOrder/containers", "$retainKeys"])
def test_directives_are_refused_and_not_stored(directive: str) -> None:
    with pytest.raises(MalformedRequestError, match="--server-side") as refused:
        strategic_merge({}, {"spec": {directive: "x"}})
    assert str(refused.value).startswith(directive)
