"""The status patch: what it contains, and that equal statuses make none."""

from typing import Any

import pytest

from rollcall_operator.control.apply import merge_patch


@pytest.mark.parametrize(
    ("live", "wanted", "patch"),
    [
        ({}, {"phase": "Pending"}, {"phase": "Pending"}),
        ({"phase": "Pending"}, {"phase": "Pending"}, {}),
        ({"phase": "Pending"}, {"phase": "Running"}, {"phase": "Running"}),
        ({"a": 1, "b": 2}, {"a": 1}, {"b": None}),
        ({"p": {"step": 1, "max": 9}}, {"p": {"step": 2, "max": 9}}, {"p": {"step": 2}}),
        ({"p": {"step": 1, "paused": "x"}}, {"p": {"step": 1}}, {"p": {"paused": None}}),
        ({"l": [1, 2]}, {"l": [1, 2]}, {}),
        ({"l": [{"t": "A"}]}, {"l": [{"t": "A"}, {"t": "B"}]}, {"l": [{"t": "A"}, {"t": "B"}]}),
        ({"p": {"step": 1}}, {"p": None}, {"p": None}),
        ({"p": 1}, {"p": {"step": 1}}, {"p": {"step": 1}}),
    ],
)
def test_merge_patch_says_only_what_differs(
    live: dict[str, Any], wanted: dict[str, Any], patch: dict[str, Any]
) -> None:
    assert merge_patch(live, wanted) == patch
