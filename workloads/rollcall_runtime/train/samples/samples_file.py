"""The recorded responses of a job in a file of bounded size."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO

from rollcall_protocol.sample_record import (
    MOST_BYTES,
    MOST_LINE,
    MOST_STEP_BYTES,
    head_of,
    thinned,
)
from rollcall_runtime.worker.log_rate import REPEATED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from rollcall_protocol.sample_record import SampleRecord

log = logging.getLogger(__name__)


class SamplesFile:
    """A tracker of responses; belongs to one thread.

    `first_step`: what the file has of it and of later ones is dropped, as training makes them anew.
    Beyond MOST_BYTES older steps are thinned out. A disk that takes nothing costs lines alone: the
    next step tries again.
    """

    def __init__(self, path: Path, *, first_step: int) -> None:
        self._path, self._first_step = path, first_step
        self._is_own = False  # whether the file has what this trainer wrote alone
        self._sizes: dict[int, int] = {}
        self._file: BinaryIO | None = None
        for step, line in self._lines():
            if step < first_step:
                self._sizes[step] = self._sizes.get(step, 0) + len(line)
        self._write_all([])

    def record_samples(self, step: int, records: Sequence[SampleRecord]) -> None:
        """Keep the responses of `step`; of many long ones the first."""
        lines = _bounded(records)
        self._sizes[step] = self._sizes.get(step, 0) + sum(map(len, lines))
        if sum(self._sizes.values()) > MOST_BYTES:
            kept = thinned(self._sizes, most=MOST_BYTES * 3 // 4)
            self._sizes = {number: self._sizes[number] for number in kept}
            self._write_all(lines)
        elif self._file is None:
            self._write_all(lines)
        else:
            try:
                _put(self._file, lines)
            except OSError as error:
                self._failed(error)

    def close(self) -> None:
        """Close the file; may be called twice. An error of the disk is ignored."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # what its buffer held was lost before
                file.close()

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """Whole lines of the file, with their steps."""
        try:
            with self._path.open("rb") as file:
                for line in file:
                    head = head_of(line)
                    if head is not None:
                        yield head.step, line
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("former responses are lost: %s: %s", self._path, error)

    def _write_all(self, new: Sequence[bytes]) -> None:
        """Write another file in its place: a trainer that was replaced goes on with the former."""
        self.close()
        draft = self._path.with_suffix(".tmp")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = draft.open("wb")
            _put(self._file, [line for step, line in self._lines() if self._stays(step)])
            _put(self._file, new)
            draft.replace(self._path)
            self._is_own = True
        except OSError as error:
            self._failed(error)

    def _stays(self, step: int) -> bool:
        return step in self._sizes and (self._is_own or step < self._first_step)

    def _failed(self, error: OSError) -> None:
        self.close()
        text = "responses are not written to %s: %s"
        log.warning(text, self._path, error, extra=REPEATED)


def _bounded(records: Sequence[SampleRecord]) -> list[bytes]:
    """Lines of at most MOST_LINE bytes, and MOST_STEP_BYTES in all."""
    lines, total = list[bytes](), 0
    for record in records:
        line = record.line()
        total += len(line)
        if total > MOST_STEP_BYTES:
            break
        if len(line) <= MOST_LINE:
            lines.append(line)
    return lines


def _put(file: BinaryIO, lines: Sequence[bytes]) -> None:
    file.writelines(lines)
    file.flush()
