"""A column that was read in all rows before the first of them is used."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollcall_runtime.data.message_keys import MessageKeys
from rollcall_runtime.data.row_kind import (
    MESSAGES,
    RowKind,
    check_roles,
    check_template,
    kind_of,
    size_of,
)
from rollcall_runtime.data.row_values import json_text
from rollcall_runtime.data.tools import TOOLS, tools_of
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rollcall_runtime.data.model_input import ModelInput
    from rollcall_runtime.data.rows import Rows

_LONGEST = 16


@dataclass(frozen=True, slots=True)
class CheckedColumn:
    """`kind` is that of every row; `longest` are some of the longest rows, by characters.

    `columns`: those that any of the rows has.
    """

    name: str
    kind: RowKind
    longest: tuple[int, ...]
    columns: tuple[str, ...]


def check_column(
    rows: Rows,
    name: str,
    *,
    model: ModelInput,
    field: str,
    also: Sequence[str] = (),
    look: Callable[[dict[str, Any], RowKind, str], None] = lambda _row, _kind, _place: None,
) -> CheckedColumn:
    """Read column `name` of all rows: each has it, in one kind, with tokens that the model knows,
    or tools that a chat template can write; the template writes the first one. `look` gets each row
    with the columns `also`, its kind and its place.

    SpecError at `field` names the first row that is wrong. A million short rows take some seconds.
    """
    kind: RowKind | None = None
    longest: list[tuple[int, int]] = []
    columns = dict.fromkeys(rows.columns)
    keys = MessageKeys(model, field=field)
    for number, row in enumerate(rows.scan((name, TOOLS, *also))):
        place = rows.place(number)
        if name not in row:
            raise SpecError(field, f"{place}: there is no column {name!r}, which other rows have")
        found = kind_of(row[name], place=f"{place}: {name}", field=field)
        if found is not (kind := kind or found):
            problem = f"{place}: {name} holds {found}, and {kind} in the rows before"
            raise SpecError(field, f"{problem}; a source has one kind of rows")
        _check_kind(row, name, kind, model=model, place=place, field=field)
        if kind is RowKind.CHAT:
            keys.check(row[name], place=f"{place}: {name}")
        look(row, kind, place)
        if number == 0 and kind is RowKind.CHAT:
            check_template(row[name], model=model, place=place)
        if not row.keys() <= columns.keys():
            columns.update(dict.fromkeys(row))
        size = size_of(row[name], kind)
        if len(longest) < _LONGEST:
            heapq.heappush(longest, (size, number))
        elif size > longest[0][0]:
            heapq.heapreplace(longest, (size, number))
    if kind is None:
        raise SpecError(field, f"{rows.place(0)}: there is no row")
    return CheckedColumn(name, kind, tuple(number for _, number in longest), tuple(columns))


def _check_kind(
    row: dict[str, Any], name: str, kind: RowKind, *, model: ModelInput, place: str, field: str
) -> None:
    match kind:
        case RowKind.TOKENS:
            model.check_tokens(row[name], place=place, field=field)
        case RowKind.CHAT:
            tools_of(row, place=place, field=field)
            check_roles(row[name], model=model, place=f"{place}: {name}", field=field)
            if any(message.get("tool_calls") for message in row[name]):
                json_text({name: row[name]}, place=place, field=field)
        case RowKind.TEXT if name == MESSAGES:
            problem = f"{place}: {name} holds text, and wants a list of messages"
            raise SpecError(
                field, f"{problem}; name the column `prompt`, or give chats as .jsonl or .parquet"
            )
