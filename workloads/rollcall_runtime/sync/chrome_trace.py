"""What weight sync did and when, as Chrome trace events: one file a process, only when asked for.

The file is a JSON array that grows event by event; viewers do without the closing bracket, so a
process that was killed leaves a trace too. Format: Trace Event Format, "JSON Array Format".
"""

import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

log = logging.getLogger(__name__)


class Trace:
    """Writes events of this process to a file in `folder`, at most about `limit` bytes.

    Each sync group has a track of its own. Safe to use from any thread. Traces are no reason to
    fail: what cannot be written is logged once and then left out.
    """

    def __init__(self, folder: Path, *, process: str, limit: int) -> None:
        self.path = folder / f"{process}-{os.getpid()}.json"
        self._lock = threading.Lock()
        self._tracks: dict[str, int] = {}
        self._left = limit
        self._file: TextIO | None = None
        # Wall time, for comparing files, that does not jump while a process runs.
        self._origin = time.time() - time.monotonic()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("w", encoding="utf-8")
            self._file.write("[\n")
        except OSError as error:
            self._give_up(error)
        self._write(_name("process_name", process, track=0))

    @contextmanager
    def span(self, name: str, *, track: str, **details: Any) -> Iterator[None]:
        """An event from here to the end of the `with` block; an error's name is added."""
        began = time.monotonic()
        try:
            yield
        except BaseException as error:
            details["error"] = type(error).__name__
            raise
        finally:
            seconds = time.monotonic() - began
            event = {"ph": "X", "name": name, "dur": _micro(seconds), "args": details}
            self._add(event, at=began, track=track)

    def instant(self, name: str, *, track: str, **details: Any) -> None:
        """An event of this moment."""
        event = {"ph": "i", "s": "t", "name": name, "args": details}
        self._add(event, at=time.monotonic(), track=track)

    def close(self) -> None:
        """Write the end of the JSON and close the file; may be called twice."""
        with self._lock:
            file, self._file = self._file, None
            if file is None:
                return
            try:
                file.write("{}]\n")
                file.close()
            except OSError as error:
                self._give_up(error)

    def _add(self, event: dict[str, Any], *, at: float, track: str) -> None:
        with self._lock:
            number = self._tracks.get(track)
            if number is None:
                number = self._tracks[track] = len(self._tracks) + 1
                self._write(_name("thread_name", track, track=number))
            self._write(event | {"ts": _micro(self._origin + at), "tid": number, "cat": "sync"})

    def _write(self, event: dict[str, Any]) -> None:
        if self._file is None or self._left <= 0:
            return
        text = json.dumps(event | {"pid": os.getpid()}, separators=(",", ":")) + ",\n"
        self._left -= len(text)
        if self._left <= 0:
            log.warning("the trace %s is full; the rest is left out", self.path)
        try:
            self._file.write(text)
            self._file.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        log.warning("cannot write the trace %s: %s", self.path, error)
        self._file = None


_lock = threading.Lock()
_open: dict[Path, tuple[Trace, int]] = {}


def open_trace(folder: Path, *, process: str, limit: int) -> Trace:
    """The trace of this process in `folder`, which its engines share; `close_trace` it."""
    with _lock:
        trace, users = _open.get(folder, (None, 0))
        trace = trace or Trace(folder, process=process, limit=limit)
        _open[folder] = (trace, users + 1)
        return trace


def close_trace(folder: Path) -> None:
    """End one use of the trace; the last one ends the file."""
    with _lock:
        trace, users = _open.pop(folder)
        if users > 1:
            _open[folder] = (trace, users - 1)
        else:
            trace.close()


def _name(kind: str, name: str, *, track: int) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "tid": track, "args": {"name": name}}


def _micro(seconds: float) -> float:
    return round(seconds * 1e6, 1)
