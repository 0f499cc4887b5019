"""Rows whose prompt is a text that a template makes of their other columns."""

from __future__ import annotations

import math
from string import Formatter
from typing import TYPE_CHECKING, Any

from rollcall_runtime.data.chat_rows import ChatRows
from rollcall_runtime.data.open_rows import open_rows
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rollcall_protocol.data_config import DataSource
    from rollcall_runtime.data.rows import Rows


def template_columns(template: str) -> set[str]:
    """The columns whose names stand in `template`."""
    return {name for _, name, _, _ in Formatter().parse(template) if name is not None}


class TemplatedRows:
    """See Rows: those of `rows`, with the text in column `prompt`, in the place of what it held.

    In `template` `{name}` stands for the row's column of that name, and `{{` and `}}` for braces.
    SpecError at `field` for another template, or a column that there is not.
    """

    def __init__(self, rows: Rows, template: str, *, prompt: str, field: str) -> None:
        self._rows, self._prompt, self._field = rows, prompt, field
        try:
            parsed = list(Formatter().parse(template))
        except ValueError as error:
            problem = f"template: {error}; write {{{{ and }}}} for braces of the text"
            raise SpecError(field, problem) from error
        if any(spec or conversion for _, _, spec, conversion in parsed):
            raise SpecError(field, "template: only the name of a column may stand between braces")
        self._parts = [(literal, name) for literal, name, _, _ in parsed]
        for _, name in self._parts:
            if name is not None and name not in rows.columns:
                known = ", ".join(sorted(rows.columns))
                problem = f"template: there is no column {name!r}; there are {known}"
                raise SpecError(field, f"{problem}; write {{{{ and }}}} for braces of the text")

    @property
    def columns(self) -> Sequence[str]:
        return tuple(dict.fromkeys([*self._rows.columns, self._prompt]))

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, number: int) -> dict[str, Any]:
        row = self._rows.row(number)
        place = self.place(number)
        text = "".join(
            literal + (self._value(row, name, place) if name is not None else "")
            for literal, name in self._parts
        )
        return {**row, self._prompt: text}

    def scan(self, columns: Sequence[str]) -> Iterator[dict[str, Any]]:  # noqa: ARG002 - a row is read whole
        return (self.row(number) for number in range(len(self)))

    def place(self, number: int) -> str:
        return self._rows.place(number)

    def close(self) -> None:
        self._rows.close()

    def _value(self, row: dict[str, Any], name: str, place: str) -> str:
        if name not in row:
            problem = f"{place}: there is no column {name!r}, which the template names"
            raise SpecError(self._field, problem)
        value = row[name]
        finite = not isinstance(value, float) or math.isfinite(value)
        if not isinstance(value, (str, int, float)) or not finite:
            problem = f"{place}: {name} holds {value!r:.60}"
            raise SpecError(self._field, f"{problem}; a template takes texts and numbers")
        return str(value)


def open_source(source: DataSource, *, field: str) -> Rows:
    """The rows of `source`, no builtin, with its template's text and as chats if it asks for that.

    See `open_rows`.
    """
    rows = open_rows(source, field=field)
    try:
        column = source.prompt_column
        if source.template:
            rows = TemplatedRows(rows, source.template, prompt=column, field=field)
        if source.chat:
            rows = ChatRows(rows, prompt=column, system=source.system, field=field)
    except SpecError:
        rows.close()
        raise
    return rows
