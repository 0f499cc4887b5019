"""The answer that a row of the data has for its prompt."""

from collections.abc import Mapping
from typing import Any


def answer_in(row: Mapping[str, Any], column: str) -> str:
    """The answer as text; KeyError names the columns that the row has."""
    if column not in row:
        raise KeyError(f"the row has no column {column!r}; it has: {', '.join(row) or 'none'}")
    return str(row[column])
