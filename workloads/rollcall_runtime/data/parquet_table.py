"""Reads a Parquet file whole, and no more than its size can stand for.

What its footer says may be wrong, and a dictionary repeats one value in any number of rows. So rows
are read a few at a time, and counted as they are in memory. Not every image has pyarrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import parquet

from rollcall_runtime.data.unpacked_size import check_unpacked
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ROWS = 256  # that are unpacked at a time
_CHUNK_BYTES = 64 << 20


def read_parquet(path: Path, *, field: str) -> Any:
    """The file as a pyarrow.Table. SpecError if it is a bomb; OSError, ValueError as pyarrow."""
    with parquet.ParquetFile(path) as file:
        check_footer(file.metadata, path, field=field)
        _refuse_twice(file.schema_arrow.names, path, field)
        done: list[Any] = []
        pending: list[Any] = []
        size = held = 0
        for batch in file.iter_batches(batch_size=ROWS):
            pending.append(batch)
            held += batch.nbytes
            check_unpacked(size + held, path, field=field)
            if held >= _CHUNK_BYTES:
                done.append(pa.Table.from_batches(pending).combine_chunks())
                pending, size, held = [], size + held, 0
        done.append(pa.Table.from_batches(pending, schema=file.schema_arrow).combine_chunks())
        return pa.concat_tables(done)


def check_footer(metadata: Any, path: Path, *, field: str) -> None:
    """SpecError if the footer itself says that the file is a bomb."""
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    size = sum(group.total_byte_size for group in groups)
    check_unpacked(max(size, metadata.num_rows), path, field=field)


def _refuse_twice(names: Sequence[str], path: Path, field: str) -> None:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        problem = f"{str(path)!r} has two columns of one name: {', '.join(twice)}"
        raise SpecError(field, f"{problem}; rename one")
