"""What a row's values are like, whichever container they come from."""

from __future__ import annotations

import json
import math
from datetime import date, time
from decimal import Decimal
from typing import Any

from rollcall_runtime.worker.errors import SpecError

_NESTED = (dict, list)
_TEXT = frozenset({str})
_SCALARS = frozenset({str, int, bool, type(None)})


def plain_row(row: dict[str, Any]) -> dict[str, Any]:
    """`row` without the keys that hold null in objects within its columns.

    An Arrow table fills an object with null for each key that only objects of other rows have, and
    does not say which nulls were written. A column of the row itself may hold null, and a list.
    """
    if set(map(type, row.values())).isdisjoint(_NESTED):
        return row
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


def check_json(values: dict[str, Any], *, place: str, field: str) -> None:
    """SpecError as `json_text`. Nearly all rows are known to be JSON without being written."""
    if not _is_json(values):
        json_text(values, place=place, field=field)


def as_it_travels(values: dict[str, Any], *, place: str, field: str) -> dict[str, Any]:
    """`values` as a reward gets them: dates and the like are text. SpecError as `json_text`."""
    if _is_json(values):
        return values
    found: dict[str, Any] = json.loads(json_text(values, place=place, field=field))
    return found


def _is_json(value: Any) -> bool:
    """Whether a parser of JSON would give `value` back as it is."""
    kind = type(value)
    if kind is dict:
        items = value.values()
        return _TEXT.issuperset(map(type, value)) and (
            _SCALARS.issuperset(map(type, items)) or all(map(_is_json, items))
        )
    if kind is list:
        return _SCALARS.issuperset(map(type, value)) or all(map(_is_json, value))
    return kind in _SCALARS or (kind is float and math.isfinite(value))


def json_text(values: dict[str, Any], *, place: str, field: str) -> str:
    """`values` of the row at `place` as JSON. SpecError at `field` for what JSON does not have."""
    try:
        return json.dumps(values, default=_as_text, allow_nan=False)
    except TypeError as error:
        wrong = next(name for name, value in values.items() if not _dumps(value))
        problem = f"{place}: {wrong}: {error}, which JSON does not have"
        raise SpecError(field, f"{problem}; choose others by `columns`") from error
    except ValueError as error:
        wrong = next(name for name, value in values.items() if not _dumps(value))
        problem = f"{place}: {wrong} holds NaN or Infinity, which JSON does not have"
        raise SpecError(field, f"{problem}; write null in its place") from error


def _dumps(value: Any) -> bool:
    try:
        json.dumps(value, default=_as_text, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _as_text(value: Any) -> str:
    """For json.dumps: dates and decimals of tables. TypeError for bytes and the like."""
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"a column holds {type(value).__name__}")
