"""The figures of a job's steps in a file, of which reports are made."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from rollcall_protocol.step_history import MOST_STEPS, StepRow, read_rows, thinned
from rollcall_runtime.worker.log_rate import REPEATED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollcall_runtime.worker.environment import TrainerEnvironment

log = logging.getLogger(__name__)


def history_path(environment: TrainerEnvironment) -> Path:
    """Of the figures of steps."""
    return _kept(environment) / "history.jsonl"


def samples_path(environment: TrainerEnvironment) -> Path:
    """Of recorded responses."""
    return _kept(environment) / "samples.jsonl"


def _kept(environment: TrainerEnvironment) -> Path:
    """Beside the checkpoints, where a replacement pod finds it too, if there are any."""
    saved = environment.job.checkpoint
    return Path(saved.path) if saved else environment.state_dir


def read_history(path: Path) -> list[StepRow]:
    """The steps of earlier processes; none, and a warning, if the file cannot be read."""
    try:
        return read_rows(path.read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        return []
    except OSError as error:
        log.warning("the former history of steps is lost: %s: %s", path, error)
        return []


class HistoryFile:
    """A tracker that writes lines of `rollcall_protocol.step_history`.

    `first_step`: what the file has of it and of later ones is dropped, as training makes them anew.
    Beyond MOST_STEPS older steps are thinned out. A disk that takes nothing costs lines alone: the
    next step tries again.
    """

    def __init__(self, path: Path, *, first_step: int) -> None:
        self._path = path
        self._rows = {row.step: row for row in read_history(path) if row.step < first_step}
        self._file: TextIO | None = None
        self._write_all()

    def record(self, step: int, figures: Mapping[str, float]) -> None:
        """Keep the figures of `step`, beside those that it has."""
        row = self._rows.setdefault(step, StepRow(step, round(time.time(), 3)))
        row.figures.update(figures)
        if len(self._rows) > MOST_STEPS:
            self._rows = {kept.step: kept for kept in thinned(list(self._rows.values()))}
            self._write_all()
        elif self._file is None:
            self._write_all()
        else:
            self._write(self._file, [StepRow(step, row.time, dict(figures))])

    def close(self) -> None:
        """Close the file; may be called twice. An error of the disk is ignored."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # what its buffer held was lost before
                file.close()

    def _write_all(self) -> None:
        """Write another file in its place: a trainer that was replaced goes on with the former."""
        self.close()
        draft = self._path.with_suffix(".tmp")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = draft.open("w", encoding="utf-8")
            if self._write(self._file, list(self._rows.values())):
                draft.replace(self._path)
        except OSError as error:
            self._failed(error)

    def _write(self, file: TextIO, rows: list[StepRow]) -> bool:
        try:
            file.writelines(row.line() for row in rows)
            file.flush()
        except OSError as error:
            self._failed(error)
            return False
        return True

    def _failed(self, error: OSError) -> None:
        self.close()
        text = "the history of steps is not written to %s: %s"
        log.warning(text, self._path, error, extra=REPEATED)
