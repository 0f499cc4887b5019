"""Rows of Arrow tables: Parquet files, and what `datasets` maps into memory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rollcall_runtime.data.row_values import plain_row
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

SCANNED_ROWS = 1000  # that are Python objects at a time
_JSON = "arrow.json"  # texts of JSON: `datasets` stores objects of different keys so


class TableRows:
    """See Rows. `table` is a pyarrow.Table, or a datasets.Dataset in Arrow format."""

    def __init__(
        self,
        name: str,
        *,
        field: str,
        columns: Sequence[str],
        count: int,
        read: Callable[[int], Any],
        batches: Callable[[list[str]], Iterator[Any]],
    ) -> None:
        self._name, self._field = name, field
        self.columns, self._count = tuple(columns), count
        self._read, self._batches = read, batches

    def __len__(self) -> int:
        return self._count

    def row(self, number: int) -> dict[str, Any]:
        return self._rows(self._read(number), number)[0]

    def scan(self, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        first = 0
        for batch in self._batches([name for name in self.columns if name in columns]):
            yield from self._rows(batch, first)
            first += len(batch)

    def _rows(self, table: Any, first: int) -> list[dict[str, Any]]:
        try:
            return _plain_rows(table)
        except (ValueError, KeyError, OverflowError) as error:
            if len(table) > 1:  # each by itself, until one is wrong
                return [
                    self._rows(table.slice(number, 1), first + number)[0]
                    for number in range(len(table))
                ]
            problem = f"{self.place(first)}: a value cannot be read: {error}"
            raise SpecError(self._field, f"{problem}; correct it") from error

    def place(self, number: int) -> str:
        return f"{self._name}, row {number + 1}"

    def close(self) -> None:
        """Arrow's memory is freed with the object."""


def open_parquet(path: Path, *, field: str) -> TableRows:
    """The rows of a Parquet file, read whole into memory (not as Python objects)."""
    try:
        import pyarrow as pa  # noqa: F401, PLC0415 - not every image has it

        from rollcall_runtime.data.parquet_table import read_parquet  # noqa: PLC0415
    except ImportError as error:
        problem = f"{str(path)!r} needs the package pyarrow, which this image lacks ({error})"
        raise SpecError(field, f"{problem}; add it, or give a .jsonl file") from error
    try:
        table = read_parquet(path, field=field)
    except SpecError:
        raise
    except OSError as error:  # pyarrow's errors of files that are no Parquet are ValueErrors
        raise SpecError(field, f"cannot read {str(path)!r}: {error}; is it mounted?") from error
    except ValueError as error:
        raise SpecError(field, f"{str(path)!r} is no whole Parquet file: {error}") from error

    return TableRows(
        str(path),
        field=field,
        columns=table.column_names,
        count=table.num_rows,
        read=lambda number: table.slice(number, 1),
        batches=lambda columns: table.select(columns).to_batches(max_chunksize=SCANNED_ROWS),
    )


def _plain_rows(table: Any) -> list[dict[str, Any]]:
    """Rows of a table or of a batch as JSON Lines would give them."""
    rows = table.to_pylist(maps_as_pydicts="strict")
    for column in table.schema:
        if _JSON in str(column.type):
            for row in rows:
                row[column.name] = _parsed(row[column.name], column.type)
    return [plain_row(row) for row in rows]


def _parsed(value: Any, kind: Any) -> Any:
    """`value`, with the JSON read that texts of type arrow.json hold in it."""
    from pyarrow import types  # noqa: PLC0415 - not every image has it

    if value is None:
        return None
    if getattr(kind, "extension_name", "") == _JSON:
        return json.loads(value)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return [_parsed(item, kind.value_type) for item in value]
    if types.is_struct(kind):
        return {item.name: _parsed(value[item.name], item.type) for item in kind}
    return value
