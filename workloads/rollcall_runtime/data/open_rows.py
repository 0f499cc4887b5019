"""Decides which container holds the rows of a source."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rollcall_protocol.data_config import REASONING_GYM
from rollcall_runtime.data.reasoning_gym_rows import ReasoningGymRows
from rollcall_runtime.data.row_files import FILES, open_file
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from rollcall_protocol.data_config import DataSource
    from rollcall_runtime.data.rows import Rows


def open_rows(source: DataSource, *, field: str) -> Rows:
    """The rows of `source`, as they are stored; SpecError at `field` says why not."""
    path = Path(source.name)
    if source.config and not source.name.startswith(REASONING_GYM):
        problem = f"config is for {REASONING_GYM}... alone"
        raise SpecError(field, f"{problem}; {source.name!r} takes none")
    if source.name.startswith(REASONING_GYM):
        rows: Rows = ReasoningGymRows(source, field=field)
    elif path.is_file() or (path.name.endswith(FILES) and not path.is_dir()):
        rows = open_file(path, field=field)
    elif path.is_absolute() and not path.exists():
        raise SpecError(field, f"cannot read {source.name!r}: it does not exist; is it mounted?")
    else:
        # Imports packages that not every image has.
        from rollcall_runtime.data.dataset_rows import open_dataset  # noqa: PLC0415

        rows = open_dataset(source, field=field)
    if not len(rows):
        rows.close()
        raise SpecError(field, f"{source.name!r} holds no row; name a file that has some")
    return rows
