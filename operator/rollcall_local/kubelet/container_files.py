"""The files of one container: what it writes, and why it says that it ends."""

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

_LONGEST_MESSAGE = 4096  # bytes
_LINES_OF_LOG, _BYTES_OF_LOG = 80, 2048  # of a log that takes the place of a message


@dataclass(frozen=True, slots=True)
class ContainerFiles:
    """In the folder of its pod."""

    folder: Path
    name: str

    def log(self, run: int) -> Path:
        """The output of a run, counted from 0."""
        return self.folder / f"{self.name}.{run}.log"

    @property
    def message(self) -> Path:
        """Where it may say why it ends."""
        return self.folder / f"{self.name}.termination"

    def last_words(self, run: int, *, or_log: bool) -> str:
        """What it has said before it ended, or else the end of its log; empty if nothing is to
        be had.
        """
        said = _read(self.message, _LONGEST_MESSAGE)
        if not said and or_log:
            log = _read(self.log(run), _BYTES_OF_LOG, at_end=True)
            said = b"\n".join(log.splitlines()[-_LINES_OF_LOG:])
        return said.decode(errors="replace")

    def output(self, lines: int | None, *, since: float = 0.0) -> bytes:
        """The last lines, or all, of the newest run that has written something.

        Those from before `since` (seconds since the epoch) are left out, where they say their time
        as workers do: `{"time": "2026-01-01T00:00:00Z", ...}`. Another one goes with the line
        before it, or with the time of the file.
        """
        files = self.folder.glob(f"{self.name}.[0-9]*.log")
        for file in sorted(files, key=lambda file: int(file.name.split(".")[-2]), reverse=True):
            found = file.read_bytes().splitlines(keepends=True)
            if found:
                found = _since(found, since, written=file.stat().st_mtime)
                return b"".join(found[0 if lines is None else max(0, len(found) - lines) :])
        return b""


def _since(lines: list[bytes], since: float, *, written: float) -> list[bytes]:
    """Lines that are not older."""
    times = [_time(line) for line in lines]
    if not any(times):
        return lines if written >= since else []
    last = 0.0
    kept = []
    for line, time in zip(lines, times, strict=True):
        last = time or last
        if last >= since:
            kept.append(line)
    return kept


def _time(line: bytes) -> float:
    """Seconds since the epoch; 0 for a line that says no time."""
    try:
        return datetime.fromisoformat(json.loads(line)["time"]).timestamp()
    except (ValueError, TypeError, KeyError):
        return 0.0


def _read(file: Path, most: int, *, at_end: bool = False) -> bytes:
    """At most so many bytes; none if there is no such file."""
    try:
        with file.open("rb") as opened:
            if at_end:
                opened.seek(max(0, file.stat().st_size - most))
            return opened.read(most)
    except OSError:
        return b""
