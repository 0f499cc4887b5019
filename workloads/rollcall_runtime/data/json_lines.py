"""Rows of a JSON Lines file, found by an index of 16 bytes a row."""

import json
import os
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rollcall_runtime.worker.errors import SpecError


class JsonLines:
    """See Rows. Empty lines are skipped; the file must not change while it is open.

    A file that is replaced (as a ConfigMap's is) stays as it was when it was opened.
    """

    def __init__(self, path: Path, *, field: str) -> None:
        self._path, self._field = path, field
        self._starts, self._lines = array("Q"), array("Q")
        try:
            self._file = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise self._unreadable(error) from error
        try:
            self._size = self._index()
        except OSError as error:
            self.close()
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> SpecError:
        return SpecError(self._field, f"cannot read {str(self._path)!r}: {error}; is it mounted?")

    def _index(self) -> int:
        at = 0
        with os.fdopen(os.dup(self._file), "rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.isspace():
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
            value = json.loads(text.decode())
        except (ValueError, RecursionError) as error:
            raise SpecError(
                self._field, f"{self.place(number)}: not JSON: {error}; correct it"
            ) from error
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

    def scan(self, *columns: str) -> Iterator[dict[str, Any]]:  # noqa: ARG002 - a line is read whole
        return (self.row(number) for number in range(len(self)))

    def place(self, number: int) -> str:
        return f"{self._path}:{self._lines[number]}"

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
