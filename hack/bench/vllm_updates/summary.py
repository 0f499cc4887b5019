"""The figures of all measurements in one object."""

from __future__ import annotations

from typing import Any


def summary(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Numbers by name: the greater one, where tied and untied heads were measured.

    Tokens that faults mixed count as `mixed_outputs` too.
    """
    merged: dict[str, Any] = {}
    for figures in found.values():
        for name, value in figures.items():
            if isinstance(value, (bool, int, float)) and name != "seconds":
                merged[name] = max(merged[name], value) if name in merged else value
    by_faults = merged.pop("mixed_outputs_by_faults", None)
    if by_faults is not None:
        merged["mixed_outputs"] = merged.get("mixed_outputs", 0) + by_faults
    return merged
