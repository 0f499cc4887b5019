"""What a reward reads of each row, so that the trainer finds wrong rows before the first step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RowNeeds:
    """`check` gets a row with those of `columns` that it has; ValueError says what is wrong.

    `field` is the path of the settings in the RLJob that name the columns.
    """

    columns: tuple[str, ...]
    check: Callable[[Mapping[str, Any]], object]
    field: str
