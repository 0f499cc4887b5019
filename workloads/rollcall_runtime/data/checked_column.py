"""A column that was read in all rows before the first of them is used."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollcall_runtime.data.row_kind import RowKind, kind_of, size_of
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from rollcall_runtime.data.model_input import ModelInput
    from rollcall_runtime.data.rows import Rows

_LONGEST = 16


@dataclass(frozen=True, slots=True)
class CheckedColumn:
    """`kind` is that of every row; `longest` are some of the longest rows, by characters."""

    name: str
    kind: RowKind
    longest: tuple[int, ...]


def check_column(rows: Rows, name: str, *, model: ModelInput, field: str) -> CheckedColumn:
    """Read column `name` of all rows: each has it, in one kind, with tokens that the model knows.

    SpecError at `field` names the first row that is wrong. A million short rows take some seconds.
    """
    kind: RowKind | None = None
    longest: list[tuple[int, int]] = []
    for number, row in enumerate(rows.scan(name)):
        place = rows.place(number)
        if name not in row:
            raise SpecError(field, f"{place}: there is no column {name!r}, which other rows have")
        found = kind_of(row[name], place=f"{place}: {name}", field=field)
        if found is not (kind := kind or found):
            problem = f"{place}: {name} holds {found}, and {kind} in the rows before"
            raise SpecError(field, f"{problem}; a source has one kind of rows")
        if kind is RowKind.TOKENS:
            model.check_tokens(row[name], place=place, field=field)
        heapq.heappush(longest, (size_of(row[name], kind), number))
        if len(longest) > _LONGEST:
            heapq.heappop(longest)
    if kind is None:
        raise SpecError(field, f"{rows.place(0)}: there is no row")
    return CheckedColumn(name, kind, tuple(number for _, number in longest))
