"""What a row's values are like, whichever container they come from."""

from __future__ import annotations

import json
from datetime import date, time
from decimal import Decimal
from typing import Any

from rollcall_runtime.worker.errors import SpecError

_NESTED = (dict, list)


def plain_row(row: dict[str, Any]) -> dict[str, Any]:
    """`row` without the keys that hold null in objects within its columns.

    An Arrow table fills an object with null for each key that only objects of other rows have, and
    does not say which nulls were written. A column of the row itself may hold null, and a list.
    """
    return {
        name: _without_nulls(value) if isinstance(value, _NESTED) else value
        for name, value in row.items()
    }


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _without_nulls(item) if isinstance(item, _NESTED) else item
            for name, item in value.items()
            if item is not None
        }
    if set(map(type, value)).isdisjoint(_NESTED):
        return value
    return [_without_nulls(item) if isinstance(item, _NESTED) else item for item in value]


def json_text(values: dict[str, Any], *, place: str, field: str) -> str:
    """`values` of the row at `place` as JSON. SpecError at `field` for what JSON does not have."""
    try:
        return json.dumps(values, default=_as_text, allow_nan=False)
    except TypeError as error:
        problem = f"{place}: {error}, which JSON does not have"
        raise SpecError(field, f"{problem}; choose others by `columns`") from error
    except ValueError as error:
        wrong = next(name for name, value in values.items() if not _finite(value))
        problem = f"{place}: {wrong} holds NaN or Infinity, which JSON does not have"
        raise SpecError(field, f"{problem}; write null in its place") from error


def _finite(value: Any) -> bool:
    try:
        json.dumps(value, default=_as_text, allow_nan=False)
    except ValueError:
        return False
    return True


def _as_text(value: Any) -> str:
    """For json.dumps: dates and decimals of tables. TypeError for bytes and the like."""
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"a column holds {type(value).__name__}")
