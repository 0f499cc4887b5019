"""Rows of files, data sets and generators by number, whatever the format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rollcall_protocol.data_config import REASONING_GYM
from rollcall_runtime.data.json_lines import JsonLines
from rollcall_runtime.data.reasoning_gym_rows import ReasoningGymRows
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rollcall_protocol.data_config import DataSource


class Rows(Protocol):
    """At least one row, each a dictionary of JSON-like values by column.

    Reading a row may raise SpecError, which names its place.
    """

    @property
    def columns(self) -> Sequence[str]:
        """The names of the columns; of JSON Lines those of the first row."""

    def __len__(self) -> int: ...

    def row(self, number: int) -> dict[str, Any]:
        """Row `number`, from 0."""

    def scan(self, *columns: str) -> Iterator[dict[str, Any]]:
        """All rows in their order, with `columns` at least; of rows that are made, some."""

    def place(self, number: int) -> str:
        """Where row `number` is, for messages: file and line, or data set and row."""

    def close(self) -> None:
        """Free what is open; harmless twice."""


def open_rows(source: DataSource, *, field: str) -> Rows:
    """The rows of `source`, as they are stored; SpecError at `field` says why not."""
    path = Path(source.name)
    if source.config and not source.name.startswith(REASONING_GYM):
        problem = f"config is for {REASONING_GYM}... alone"
        raise SpecError(field, f"{problem}; {source.name!r} takes none")
    if source.name.startswith(REASONING_GYM):
        rows: Rows = ReasoningGymRows(source, field=field)
    elif path.suffix == ".jsonl":
        rows = JsonLines(path, field=field)
    elif path.suffix == ".parquet":
        # These import packages that not every image has.
        from rollcall_runtime.data.arrow_rows import open_parquet  # noqa: PLC0415

        rows = open_parquet(path, field=field)
    else:
        from rollcall_runtime.data.arrow_rows import open_dataset  # noqa: PLC0415

        rows = open_dataset(source, field=field)
    if not len(rows):
        rows.close()
        raise SpecError(field, f"{source.name!r} holds no row; name a file that has some")
    return rows
