"""Rows of Parquet files and of Hugging Face data sets, which stay in Arrow's memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rollcall_protocol.data_config import DataSource

_SCANNED_ROWS = 1000  # that are Python objects at a time


class TableRows:
    """See Rows. `table` is a pyarrow.Table, or a datasets.Dataset in Arrow format."""

    def __init__(
        self,
        name: str,
        *,
        columns: Sequence[str],
        count: int,
        read: Callable[[int], Any],
        batches: Callable[[list[str]], Iterator[Any]],
    ) -> None:
        self._name, self.columns, self._count = name, tuple(columns), count
        self._read, self._batches = read, batches

    def __len__(self) -> int:
        return self._count

    def row(self, number: int) -> dict[str, Any]:
        found: dict[str, Any] = self._read(number).to_pylist()[0]
        return found

    def scan(self, *columns: str) -> Iterator[dict[str, Any]]:
        for batch in self._batches(list(columns)):
            yield from batch.to_pylist()

    def place(self, number: int) -> str:
        return f"{self._name}, row {number + 1}"

    def close(self) -> None:
        """Arrow's memory is freed with the object."""


def open_parquet(path: Path, *, field: str) -> TableRows:
    """The rows of a Parquet file, read whole into memory (not as Python objects)."""
    try:
        from pyarrow import parquet  # noqa: PLC0415 - not every image has it
    except ImportError as error:
        problem = f"{str(path)!r} needs the package pyarrow, which this image lacks ({error})"
        raise SpecError(field, f"{problem}; add it, or give a .jsonl file") from error
    try:
        table = parquet.read_table(path)
    except OSError as error:  # pyarrow's errors of files that are no Parquet are ValueErrors
        raise SpecError(field, f"cannot read {str(path)!r}: {error}; is it mounted?") from error
    except ValueError as error:
        raise SpecError(field, f"{str(path)!r} is no whole Parquet file: {error}") from error

    return TableRows(
        str(path),
        columns=table.column_names,
        count=table.num_rows,
        read=lambda number: table.slice(number, 1),
        batches=lambda names: table.select(names).to_batches(max_chunksize=_SCANNED_ROWS),
    )


def open_dataset(source: DataSource, *, field: str) -> TableRows:
    """The rows of a directory or an id, memory-mapped by `datasets`.

    An id is taken from a hub or from the cache, as HF_HOME, HF_ENDPOINT and HF_HUB_OFFLINE say.
    """
    try:
        import datasets  # noqa: PLC0415 - likewise
    except ImportError as error:
        problem = f"{source.name!r} needs the package datasets, which this image lacks ({error})"
        raise SpecError(field, f"{problem}; add it, or give a .jsonl or .parquet file") from error
    datasets.disable_progress_bars()
    try:
        found = _load(datasets, source, field=field).with_format("arrow")
    except SpecError:
        raise
    except (OSError, ValueError, KeyError, datasets.exceptions.DatasetsError) as error:
        problem = f"cannot load the data set {source.name!r}: {type(error).__name__}: {error}"
        raise SpecError(field, f"{problem}; {_ADVICE}") from error
    return TableRows(
        source.name,
        columns=found.column_names,
        count=len(found),
        read=lambda number: found[number],
        batches=lambda names: found.select_columns(names).iter(_SCANNED_ROWS),
    )


_ADVICE = (
    "give a .jsonl or .parquet file, a directory in this container, or an id that is on the hub "
    "or, with HF_HUB_OFFLINE=1, in the cache"
)


def _load(datasets: Any, source: DataSource, *, field: str) -> Any:
    directory = Path(source.name)
    if not directory.is_dir() or not any((directory / name).is_file() for name in _SAVED):
        return datasets.load_dataset(source.name, source.subset or None, split=source.split)
    found = datasets.load_from_disk(source.name)
    if not isinstance(found, datasets.DatasetDict):
        return found
    if source.split not in found:
        known = ", ".join(sorted(found))
        raise SpecError(field, f"{source.name!r} has no split {source.split!r}; it has {known}")
    return found[source.split]


_SAVED = ("dataset_dict.json", "state.json")
