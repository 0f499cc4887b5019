"""Rows of a JSON Lines file, found by an index of 16 bytes a row."""

import codecs
import json
import os
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rollcall_runtime.data.row_values import plain_row
from rollcall_runtime.worker.errors import SpecError

_MARK = codecs.BOM_UTF8  # some programs write it at the start of a file
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class JsonLines:
    """See Rows. Empty lines are skipped; the file must not change while it is open.

    A file that is replaced (as a ConfigMap's is) stays as it was when it was opened. `unpacked`: an
    open file that holds the lines in the place of `path`; unless `by_line`, these are not its own.
    """

    def __init__(
        self, path: Path, *, field: str, unpacked: int | None = None, by_line: bool = True
    ) -> None:
        self._path, self._field, self._by_line = path, field, by_line
        self._starts, self._lines = array("Q"), array("Q")
        try:
            self._file = os.open(path, os.O_RDONLY) if unpacked is None else os.dup(unpacked)
        except OSError as error:
            raise self._unreadable(error) from error
        try:
            os.lseek(self._file, 0, os.SEEK_SET)
            self._size = self._index()
        except OSError as error:
            self.close()
            raise self._unreadable(error) from error
        except SpecError:
            self.close()
            raise

    def _unreadable(self, error: OSError) -> SpecError:
        return SpecError(self._field, f"cannot read {str(self._path)!r}: {error}; is it mounted?")

    def _index(self) -> int:
        at = 0
        with os.fdopen(os.dup(self._file), "rb") as lines:
            for number, line in enumerate(lines, start=1):
                if at == 0 and line.startswith(_UTF_16):
                    problem = f"{str(self._path)!r} is UTF-16; save it as UTF-8"
                    raise SpecError(self._field, problem)
                if line.removeprefix(_MARK).strip():
                    self._starts.append(at)
                    self._lines.append(number)
                at += len(line)
        return at

    @property
    def columns(self) -> Sequence[str]:
        return tuple(self.row(0))

    def __len__(self) -> int:
        return len(self._starts)

    def row(self, number: int) -> dict[str, Any]:
        start = self._starts[number]
        last = number + 1 == len(self._starts)
        end = self._size if last else self._starts[number + 1]
        # Not mapped into memory: a volume that fails would end the process by a signal.
        text = os.pread(self._file, end - start, start)
        try:
            value = json.loads(text.removeprefix(_MARK).decode())
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
        return plain_row(value)

    def _refuse_half_pairs(self, value: dict[str, Any], number: int) -> None:
        """JSON may hold half of a surrogate pair (RFC 8259, section 8.2); no tokenizer takes it."""
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = error.object[error.start]
            problem = f"{self.place(number)}: not text: {half!a} is half of a surrogate pair"
            raise SpecError(self._field, f"{problem}; correct it") from error

    def scan(self, columns: Sequence[str]) -> Iterator[dict[str, Any]]:  # noqa: ARG002 - a line is read whole
        return (self.row(number) for number in range(len(self)))

    def place(self, number: int) -> str:
        if not self._by_line:
            return f"{self._path}, row {number + 1}"
        return f"{self._path}:{self._lines[number]}"

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
