"""The answer that a row of the data has for its prompt."""

import math
from collections.abc import Mapping
from typing import Any

from rollcall_runtime.tasks.row_needs import RowNeeds

_MOST_WHOLE = 2**53  # from here on a float does not hold each whole number


def columns_of(path: str) -> tuple[str, ...]:
    """The columns that may hold what `value_at` finds: the name itself, or its first part."""
    return tuple(dict.fromkeys((path, path.split(".", 1)[0])))


def value_at(row: Mapping[str, Any], path: str) -> Any:
    """The column `path`, or where its parts between dots lead. ValueError says what is lacking."""
    if path in row:
        return row[path]
    value: Any = row
    walked = ""
    for name in path.split("."):
        if not isinstance(value, Mapping):
            problem = f"{walked!r} holds {shown(value)}, in which there is no {name!r}"
            raise ValueError(problem)  # noqa: TRY004 - data, and no argument
        if name not in value:
            where = f"{walked!r} has no {name!r}" if walked else f"the row has no column {name!r}"
            raise ValueError(f"{where}; it has: {', '.join(value) or 'none'}")
        value, walked = value[name], f"{walked}.{name}" if walked else name
    return value


def answer_in(row: Mapping[str, Any], path: str) -> str:
    """The answer as text: that of a text, a number or a truth value.

    A whole number has no point: tables hold 72 as 72.0 where other rows lack it.
    ValueError for anything else: an object or a list is equal to no response, whatever a model
    writes.
    """
    value = value_at(row, path)
    if not isinstance(value, (str, int, float)) or (
        isinstance(value, float) and not math.isfinite(value)
    ):
        problem = f"{path!r} holds {shown(value)}; the answer must be a text or a number"
        raise ValueError(problem + _advice(value, path))
    whole = isinstance(value, float) and value.is_integer() and abs(value) < _MOST_WHOLE
    return str(int(value) if whole else value)


def answer_needs(path: str, field: str) -> RowNeeds:
    """What a reward needs that calls `answer_in`; `field` is that of its settings."""

    def check(row: Mapping[str, Any]) -> None:
        try:
            answer_in(row, path)
        except ValueError as error:
            raise ValueError(f"{field}.column: {error}") from error

    return RowNeeds(columns_of(path), check, field)


def shown(value: Any) -> str:
    """A value in a message: at most 60 characters of it."""
    return "null" if value is None else f"{value!r:.60}"


def _advice(value: Any, path: str) -> str:
    if not isinstance(value, Mapping):
        return ""
    inner = next((name for name, held in value.items() if isinstance(held, (str, int, float))), "")
    return f"; name the part that is, such as {path}.{inner}" if inner else ""
