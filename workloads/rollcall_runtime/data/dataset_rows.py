"""Rows of folders, and of data sets of a hub or its cache, found by the package datasets."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollcall_runtime.data.arrow_rows import SCANNED_ROWS, TableRows
from rollcall_runtime.data.chained_rows import ChainedRows
from rollcall_runtime.data.row_files import FILES, open_file
from rollcall_runtime.models.json_file import read_json_object
from rollcall_runtime.worker.contained_files import problem_of_named, root_of
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rollcall_protocol.data_config import DataSource
    from rollcall_runtime.data.rows import Rows

log = logging.getLogger(__name__)

_READ = ("arrow", "cache", "csv", "json", "parquet", "text")
"""Builders of `datasets` for files of rows; others unpack archives or read pictures."""
_SAVED = ("dataset_dict.json", "state.json")
_MOST_STATE = 16 << 20  # bytes of a file of JSON beside a saved data set
_OUTSIDE = "it is no file of the data set; name a data set that holds its files"
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
    except Exception as error:  # packages that it reads files with have errors of their own
        problem = f"cannot load the data set {source.name!r}: {type(error).__name__}: {error}"
        raise SpecError(field, f"{problem}; {_ADVICE}") from error


def _open(datasets: Any, source: DataSource, *, field: str) -> Rows:
    folder = Path(source.name)

    if folder.is_dir() and any((folder / name).is_file() for name in _SAVED):
        return _table(source, _saved(datasets, source, field=field), field)
    builder = datasets.load_dataset_builder(source.name, source.subset or None)
    _check_builder(builder, source, field=field)

    def load() -> Rows:
        builder.download_and_prepare()
        return _table(source, builder.as_dataset(split=source.split), field)

    return _folder(datasets, builder, source, load, field=field) if folder.is_dir() else load()


def _check_builder(builder: Any, source: DataSource, *, field: str) -> None:
    """SpecError if a data set is no files of rows, or has files that are not its own.

    Its README.md may name any file of this container, and any address.
    """
    if builder.name not in _READ:
        problem = f"{source.name!r} is read as {builder.name}, not as files of rows"
        raise SpecError(field, f"{problem}; {_ADVICE}")
    folder = Path(source.name)
    is_folder = folder.is_dir()
    own = tuple(f"hf://datasets/{source.name}{end}" for end in "@/")
    for split in (builder.config.data_files or {}).values():
        for name in map(str, split):
            if is_folder:
                problem = problem_of_named(Path(name), folder)
            else:
                problem = "" if name.startswith(own) else _OUTSIDE
            if problem:
                raise SpecError(field, f"{source.name!r} names {name!r}: {problem}")
            if name.endswith(".parquet") and is_folder:
                _check_parquet(Path(name), field=field)


def _check_parquet(path: Path, *, field: str) -> None:
    # Not every image has pyarrow.
    from pyarrow import parquet  # noqa: PLC0415

    from rollcall_runtime.data.parquet_table import check_footer  # noqa: PLC0415

    check_footer(parquet.read_metadata(path), path, field=field)


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
    _check_saved(Path(source.name), field=field)
    found = datasets.load_from_disk(source.name)
    if not isinstance(found, datasets.DatasetDict):
        return found
    if source.split not in found:
        known = ", ".join(sorted(found))
        raise SpecError(field, f"{source.name!r} has no split {source.split!r}; it has {known}")
    return found[source.split]


def _check_saved(folder: Path, *, field: str) -> None:
    """SpecError if a file that `save_to_disk` lists is outside of the folder, or is none."""
    dictionary = folder / "dataset_dict.json"
    if dictionary.is_file():
        found = read_json_object(dictionary, field=field, most=_MOST_STATE)
        for name in found.get("splits") or ():
            problem = problem_of_named(folder / str(name), folder)
            if problem:
                raise SpecError(field, f"'{dictionary}' names the split {name!r}: {problem}")
            _check_saved(folder / str(name), field=field)
        return
    state = folder / "state.json"
    if not state.is_file():
        return
    found = read_json_object(state, field=field, most=_MOST_STATE)
    for entry in found.get("_data_files") or ():
        named = entry.get("filename") if isinstance(entry, dict) else None
        problem = problem_of_named(folder / str(named), folder)
        if problem:
            raise SpecError(field, f"'{state}' names {named!r}: {problem}")


def _folder(
    datasets: Any, builder: Any, source: DataSource, load: Callable[[], Rows], *, field: str
) -> Rows:
    """`datasets` says which files are of the split. Files of text are read as such a file alone is:
    it would guess types. So are Parquet files whose objects differ in their keys, which it refuses.
    """
    found = {
        split: list(map(str, files)) for split, files in (builder.config.data_files or {}).items()
    }
    _name_unread(source, [Path(file) for files in found.values() for file in files])
    files = found.get(source.split, [])

    root = root_of(Path(source.name))

    def open_files() -> Rows:
        return ChainedRows([open_file(Path(file), field=field, root=root) for file in files])

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
