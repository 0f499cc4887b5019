"""Rows of a JSON Lines file, found by an index of 16 bytes a row."""

import codecs
import json
import os
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rollcall_runtime.data.row_values import plain_row
from rollcall_runtime.worker.errors import SpecError

MAX_LINE = 64 << 20  # bytes
_MARK = codecs.BOM_UTF8  # some programs write it at the start of a file
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_PACKED = (b"\x1f\x8b", b"BZh", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ")  # gzip, bzip2, zstd, xz
_SPACE = " \t\r\n"  # as JSON has it
_AT_ONCE = 1 << 16  # bytes of rows that are read one after the other
_first_value = json.JSONDecoder().raw_decode


class JsonLines:
    """See Rows. Empty lines are skipped; the file must not change while it is open.

    A file that is replaced (as a ConfigMap's is) stays as it was when it was opened. `unpacked`: an
    open file that holds the lines in the place of `path`; unless `by_line`, these are not its own.
    """

    def __init__(
        self, path: Path, *, field: str, unpacked: int | None = None, by_line: bool = True
    ) -> None:
        self._path, self._field, self._by_line = path, field, by_line
        self._name = str(path)
        self._starts, self._lines = array("Q"), array("Q")
        try:
            self._file = os.open(path, os.O_RDONLY) if unpacked is None else os.dup(unpacked)
        except OSError as error:
            raise self._unreadable(error) from error
        try:
            os.lseek(self._file, 0, os.SEEK_SET)
            self._index()
        except OSError as error:
            self.close()
            raise self._unreadable(error) from error
        except SpecError:
            self.close()
            raise

    def _unreadable(self, error: OSError) -> SpecError:
        return SpecError(self._field, f"cannot read {str(self._path)!r}: {error}; is it mounted?")

    def _index(self) -> None:
        """The starts of all rows, and where the last one ends."""
        at = 0
        with os.fdopen(os.dup(self._file), "rb") as lines:
            read = partial(lines.readline, MAX_LINE + 1)
            for number, line in enumerate(iter(read, b""), start=1):
                if len(line) > MAX_LINE:
                    problem = f"{self._path}:{number}: the line has more than {MAX_LINE} bytes"
                    raise SpecError(self._field, f"{problem}; write each row on a line of its own")
                if at == 0 and line.startswith(_PACKED):
                    problem = f"{self._name!r} is packed"
                    raise SpecError(self._field, f"{problem}; unpack it, or name gzip's .jsonl.gz")
                if at == 0 and (line.startswith(_UTF_16) or b"\0" in line[:4]):
                    problem = f"{self._name!r} is UTF-16 or UTF-32; save it as UTF-8"
                    raise SpecError(self._field, problem)
                if line.removeprefix(_MARK).strip():
                    self._starts.append(at)
                    self._lines.append(number)
                at += len(line)
        self._starts.append(at)

    @property
    def columns(self) -> Sequence[str]:
        return tuple(self.row(0))

    def __len__(self) -> int:
        return len(self._lines)

    def row(self, number: int) -> dict[str, Any]:
        return self._parsed(self._text(number, number + 1), number)

    def _text(self, first: int, last: int) -> bytes:
        """The rows from `first` to before `last`.

        Not mapped into memory: a volume that fails would end the process by a signal.
        """
        start = self._starts[first]
        return os.pread(self._file, self._starts[last] - start, start)

    def _parsed(self, text: bytes, number: int) -> dict[str, Any]:
        try:
            found = _json_of(text.removeprefix(_MARK).decode())
            value = plain_row(found) if isinstance(found, dict) else found
        except (ValueError, RecursionError) as error:
            problem = f"{self.place(number)}: not JSON: {error}; correct it"
            if ".json" in self._path.suffixes:
                problem += ", or write one array of all rows, or each row on a line of its own"
            raise SpecError(self._field, problem) from error
        if not isinstance(value, dict):
            kind = type(value).__name__
            raise SpecError(self._field, f"{self.place(number)}: wants an object, not a {kind}")
        if b"\\ud" in text or b"\\uD" in text:
            self._refuse_half_pairs(value, number)
        return value

    def _refuse_half_pairs(self, value: dict[str, Any], number: int) -> None:
        """JSON may hold half of a surrogate pair (RFC 8259, section 8.2); no tokenizer takes it."""
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = error.object[error.start]
            problem = f"{self.place(number)}: not text: {half!a} is half of a surrogate pair"
            raise SpecError(self._field, f"{problem}; correct it") from error

    def scan(self, columns: Sequence[str]) -> Iterator[dict[str, Any]]:  # noqa: ARG002 - a line is read whole
        starts, first = self._starts, 0
        while first < len(self):
            begin = starts[first]
            last = bisect_right(starts, begin + _AT_ONCE, first + 1, len(self))
            text = self._text(first, last)
            for number in range(first, last):
                yield self._parsed(
                    text[starts[number] - begin : starts[number + 1] - begin], number
                )
            first = last

    def place(self, number: int) -> str:
        if not self._by_line:
            return f"{self._name}, row {number + 1}"
        return f"{self._name}:{self._lines[number]}"

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _json_of(text: str) -> Any:
    """As `json.loads`, with less work for each of many short texts. ValueError."""
    stripped = text.strip(_SPACE)
    value, end = _first_value(stripped)
    if end < len(stripped):
        raise ValueError(f"there is more behind its end, from character {end + 1} on")
    return value
