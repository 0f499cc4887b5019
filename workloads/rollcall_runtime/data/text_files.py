"""Rows of files of text: JSON Lines as they are, and what is unpacked into JSON Lines."""

from __future__ import annotations

import csv
import gzip
import json
import tempfile
import zlib
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from rollcall_runtime.data.json_lines import JsonLines
from rollcall_runtime.data.unpacked_size import MOST_UNPACKED, check_unpacked
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator

SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv")  # each also with PACKED
PACKED = ".gz"
MAX_CELL = 64 << 20  # characters of a cell of a CSV file, and of a line
MAX_ARRAY = 1 << 30  # bytes of an array, which is read whole
_BLOCK = 1 << 20


def open_text(path: Path, *, field: str) -> JsonLines:
    """The rows of a file with one of SUFFIXES. What is no JSON Lines is unpacked into a temporary
    file. SpecError at `field` for one that cannot be read.
    """
    try:
        with tempfile.TemporaryFile() as unpacked:
            numbered = _unpack(path, unpacked, field=field)
            if numbered is None:
                return JsonLines(path, field=field)
            unpacked.flush()
            return JsonLines(path, field=field, unpacked=unpacked.fileno(), by_line=numbered)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise SpecError(field, f"{str(path)!r} is no whole gzip file: {error}") from error
    except OSError as error:
        raise SpecError(field, f"cannot read {str(path)!r}: {error}; is it mounted?") from error


def _unpack(path: Path, to: BinaryIO, *, field: str) -> bool | None:
    """None: there is nothing to unpack; otherwise whether the lines are those of the file."""
    packed = path.suffix == PACKED
    kind = Path(path.name.removesuffix(PACKED)).suffix
    with cast("BinaryIO", gzip.open(path)) if packed else path.open("rb") as file:
        if kind == ".csv":
            _write_lines(_csv_rows(file, path, field), to, path, field)
            return False
        if kind == ".json" and _begins_an_array(file):
            _write_lines(_array(file, path, field), to, path, field)
            return False
        if not packed:
            return None
        while block := file.read(_BLOCK):
            to.write(block)
            check_unpacked(to.tell(), path, field=field, most=MOST_UNPACKED)
        return True


def _write_lines(rows: Iterator[Any], to: BinaryIO, path: Path, field: str) -> None:
    for row in rows:
        to.write(json.dumps(row).encode() + b"\n")
        check_unpacked(to.tell(), path, field=field, most=MOST_UNPACKED)


def _begins_an_array(file: BinaryIO) -> bool:
    start = file.read(4096).decode("utf-8-sig", errors="replace").lstrip()
    file.seek(0)
    return start.startswith("[")


def _array(file: BinaryIO, path: Path, field: str) -> Iterator[Any]:
    text = bytearray()
    while block := file.read(_BLOCK):
        text += block
        check_unpacked(len(text), path, field=field)
        if len(text) > MAX_ARRAY:
            problem = f"{path}: an array of more than {MAX_ARRAY} bytes is not read"
            raise SpecError(field, f"{problem}; write each row on a line of its own (.jsonl)")
    try:
        yield from json.loads(text.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise SpecError(field, f"{path}: not JSON: {error}; correct it") from error


def _bounded_lines(text: TextIOWrapper, path: Path, field: str) -> Iterator[str]:
    for number, line in enumerate(iter(partial(text.readline, MAX_CELL + 1), ""), start=1):
        if len(line) > MAX_CELL:
            problem = f"{path}:{number}: the line has more than {MAX_CELL} characters"
            raise SpecError(field, f"{problem}; is it a CSV file?")
        yield line


def _csv_rows(file: BinaryIO, path: Path, field: str) -> Iterator[dict[str, str]]:
    """All values are text: a CSV file does not say which are numbers."""
    csv.field_size_limit(MAX_CELL)
    with TextIOWrapper(file, "utf-8-sig", newline="") as text:
        lines = csv.reader(_bounded_lines(text, path, field), strict=True)
        try:
            header = next(lines, [])
            if len(set(header)) < len(header):
                raise SpecError(field, f"{path}:1: two columns have one name; rename one")
            for name in header:
                if name != name.strip():
                    problem = f"{path}:1: the column {name!r} begins or ends with a space"
                    raise SpecError(field, f"{problem}; take it out")
            for cells in filter(None, lines):
                if len(cells) != len(header):
                    problem = f"{len(cells)} cells, where the header has {len(header)}"
                    raise SpecError(field, f"{path}:{lines.line_num}: {problem}; correct it")
                yield dict(zip(header, cells, strict=True))
        except csv.Error as error:
            problem = f"{path}:{lines.line_num}: not CSV: {error}"
            raise SpecError(field, f"{problem}; correct it") from error
        except UnicodeDecodeError as error:  # of a part of the file, of many lines
            raise SpecError(field, f"{path}: not UTF-8: {error}; save it as UTF-8") from error
