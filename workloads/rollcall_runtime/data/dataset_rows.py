"""Rows of folders, and of data sets of a hub or its cache, found by the package datasets."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollcall_runtime.data.arrow_rows import SCANNED_ROWS, TableRows
from rollcall_runtime.data.chained_rows import ChainedRows
from rollcall_runtime.data.row_files import FILES, open_file
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rollcall_protocol.data_config import DataSource
    from rollcall_runtime.data.rows import Rows

log = logging.getLogger(__name__)

_SAVED = ("dataset_dict.json", "state.json")
_ADVICE = (
    "give a .jsonl or .parquet file, a directory in this container, or an id that is on the hub "
    "or, with HF_HUB_OFFLINE=1, in the cache"
)


def open_dataset(source: DataSource, *, field: str) -> Rows:
    """The rows of a directory or an id. SpecError at `field` says why not.

    An id is taken from a hub or from the cache, as HF_HOME, HF_ENDPOINT and HF_HUB_OFFLINE say, and
    is mapped into memory. So is what `save_to_disk` wrote, and a folder of Parquet files.
    """
    try:
        import datasets  # noqa: PLC0415 - not every image has it
    except ImportError as error:
        problem = f"{source.name!r} needs the package datasets, which this image lacks ({error})"
        raise SpecError(field, f"{problem}; add it, or give a .jsonl or .parquet file") from error
    datasets.disable_progress_bars()
    try:
        return _open(datasets, source, field=field)
    except SpecError:
        raise
    except (OSError, ValueError, KeyError, datasets.exceptions.DatasetsError) as error:
        problem = f"cannot load the data set {source.name!r}: {type(error).__name__}: {error}"
        raise SpecError(field, f"{problem}; {_ADVICE}") from error


def _open(datasets: Any, source: DataSource, *, field: str) -> Rows:
    folder = Path(source.name)

    def load() -> Rows:
        subset = source.subset or None
        return _table(source, datasets.load_dataset(source.name, subset, split=source.split), field)

    if not folder.is_dir():
        return load()
    if any((folder / name).is_file() for name in _SAVED):
        return _table(source, _saved(datasets, source, field=field), field)
    return _folder(datasets, source, load, field=field)


def _table(source: DataSource, found: Any, field: str) -> TableRows:
    table = found.with_format("arrow")
    return TableRows(
        source.name,
        field=field,
        columns=table.column_names,
        count=len(table),
        read=lambda number: table[number],
        batches=lambda columns: table.select_columns(columns).iter(SCANNED_ROWS),
    )


def _saved(datasets: Any, source: DataSource, *, field: str) -> Any:
    found = datasets.load_from_disk(source.name)
    if not isinstance(found, datasets.DatasetDict):
        return found
    if source.split not in found:
        known = ", ".join(sorted(found))
        raise SpecError(field, f"{source.name!r} has no split {source.split!r}; it has {known}")
    return found[source.split]


def _folder(datasets: Any, source: DataSource, load: Callable[[], Rows], *, field: str) -> Rows:
    """`datasets` says which files are of the split. Files of text are read as such a file alone is:
    it would guess types. So are Parquet files whose objects differ in their keys, which it refuses.
    """
    builder = datasets.load_dataset_builder(source.name, source.subset or None)
    found = {
        split: list(map(str, files)) for split, files in (builder.config.data_files or {}).items()
    }
    _name_unread(source, [Path(file) for files in found.values() for file in files])
    files = found.get(source.split, [])

    def open_files() -> Rows:
        return ChainedRows([open_file(Path(file), field=field) for file in files])

    own = vars(builder.config)  # what a README.md may set
    plain = own.get("field") is None and own.get("sep", ",") == ","
    if files and plain and builder.name in {"json", "csv"}:
        return open_files()
    try:
        return load()
    except datasets.exceptions.DatasetGenerationError:
        if not (files and builder.name == "parquet"):
            raise
        return open_files()


def _name_unread(source: DataSource, read: Sequence[Path]) -> None:
    """Files of rows beside those of all splits: of another kind, or with a name of no split."""
    known = {file.resolve() for file in read}
    rows = (file for file in Path(source.name).rglob("*") if file.name.endswith(FILES))
    unread = sorted(file.name for file in rows if file.resolve() not in known)
    if known and unread:
        log.warning(
            "%s: of these files of the folder no split has rows: %s; give files of one kind, or a "
            "README.md that says their splits",
            source.name,
            ", ".join(unread),
        )
