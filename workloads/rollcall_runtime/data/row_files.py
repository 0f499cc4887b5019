"""One file of rows, by the end of its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollcall_runtime.data.text_files import PACKED, SUFFIXES, open_text
from rollcall_runtime.worker.contained_files import problem_of_file, volume_of
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from pathlib import Path

    from rollcall_runtime.data.rows import Rows

FILES = (".parquet", *SUFFIXES, *(suffix + PACKED for suffix in SUFFIXES))


def open_file(path: Path, *, field: str, root: Path | None = None) -> Rows:
    """The rows of a file whose name ends in one of FILES; SpecError at `field` says why not.

    Links lead no further than `root`, or than the volume that holds the file.
    """
    try:
        problem = problem_of_file(path, root or volume_of(path.parent))
    except OSError:
        problem = ""  # who opens it says what is wrong
    if problem:
        raise SpecError(field, problem)
    if path.suffix == ".parquet":
        # Imports a package that not every image has.
        from rollcall_runtime.data.arrow_rows import open_parquet  # noqa: PLC0415

        return open_parquet(path, field=field)
    if path.name.endswith(FILES):
        return open_text(path, field=field)
    problem = f"{str(path)!r} is of no kind that can be read"
    raise SpecError(field, f"{problem}; give a file that ends in {', '.join(FILES)}, or a folder")
