"""A worker's log as the node writes it: lines with the time at which they were said."""

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from hack.bench.recovery.pod_processes import log_folders

LOOK_SECONDS = 0.005

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WorkerLogLine:
    """What a worker said; `at` is seconds of time.time(), to a millisecond."""

    at: float
    message: str


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """A training step ended."""

    at: float
    number: int


@dataclass(frozen=True, slots=True)
class LoggedSession:
    """A session is usable; `members` with the trainer."""

    at: float
    members: int
    cause: str


@dataclass(frozen=True, slots=True)
class LoggedVersion:
    """A version serves in the whole session. `began`: when its transfer did."""

    began: float
    staged: float
    at: float
    number: int


WorkerLogEvent = LoggedStep | LoggedSession | LoggedVersion

_STEP = re.compile(r"step (\d+): ")
_SESSION = re.compile(r"session \S+ formed: (\d+) members, [\d.]+ s after (\w+)")
_VERSION = re.compile(
    r"version (\d+) published: \d+ members, staged in ([\d.]+) s, committed in ([\d.]+) s"
)


def parse(text: str) -> WorkerLogLine | None:
    """A line of the node's file: time, stream, F, and the worker's JSON; None for others."""
    _, _, said = text.partition(" F ")
    return parse_said(said)


def parse_said(said: str) -> WorkerLogLine | None:
    """A line as the worker writes it: JSON; None for others."""
    if not said.startswith("{"):
        return None
    try:
        value: dict[str, Any] = json.loads(said)
        return WorkerLogLine(datetime.fromisoformat(value["time"]).timestamp(), value["message"])
    except (ValueError, KeyError):
        return None


def event(line: WorkerLogLine) -> WorkerLogEvent | None:
    """The event that a line of the trainer reports; None for other lines."""
    if found := _STEP.match(line.message):
        return LoggedStep(line.at, int(found[1]))
    if found := _SESSION.match(line.message):
        return LoggedSession(line.at, int(found[1]), found[2])
    if found := _VERSION.match(line.message):
        staged = line.at - float(found[3])
        return LoggedVersion(staged - float(found[2]), staged, line.at, int(found[1]))
    return None


class WorkerLog:
    """Follows one container's log from its first line; `lines` has all that were read."""

    def __init__(self, pod_uid: str, *, restarts: int = 0, seconds: float = 30.0) -> None:
        """`restarts` counts the container's restarts. TimeoutError when there is no such log."""
        self.lines: list[WorkerLogLine] = []
        self.events: list[WorkerLogEvent] = []
        self._path = _find(pod_uid, restarts, seconds)
        self._read, self._rest = 0, ""

    def look(self) -> None:
        """Read what has been written since."""
        with self._path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        self._read += len(data)
        *whole, self._rest = (self._rest + data.decode(errors="replace")).split("\n")
        for text in whole:
            line = parse(text)
            if line is not None:
                self.lines.append(line)
                found = event(line)
                if found is not None:
                    self.events.append(found)

    def wait(
        self,
        kind: type[T],
        *,
        after: float,
        seconds: float,
        that: Callable[[T], bool] = lambda _: True,
    ) -> T:
        """The first event of a kind after a time; TimeoutError when there is none."""
        deadline, passed = time.monotonic() + seconds, 0
        while True:
            self.look()
            for found in self.events[passed:]:
                if isinstance(found, kind) and found.at > after and that(found):
                    return found
            passed = len(self.events)  # not again: this must not take the cores from the job
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {kind.__name__} within {seconds:.0f} s of {after:.3f}")
            time.sleep(LOOK_SECONDS)

    def wait_for(self, beginning: str, *, seconds: float) -> float:
        """When it first wrote a message that begins so; TimeoutError when it does not."""
        deadline = time.monotonic() + seconds
        while (at := self.first(beginning)) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{beginning!r} was not written within {seconds:.0f} s")
            time.sleep(LOOK_SECONDS)
        return at

    def steps(self) -> Iterator[LoggedStep]:
        """All steps so far."""
        return (found for found in self.events if isinstance(found, LoggedStep))

    def first(self, beginning: str, *, after: float = 0.0) -> float | None:
        """When it first wrote a message that begins so."""
        self.look()
        return next(
            (x.at for x in self.lines if x.at > after and x.message.startswith(beginning)), None
        )


def _find(pod_uid: str, restarts: int, seconds: float) -> Path:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for folder in log_folders(pod_uid):
            path = folder / f"{restarts}.log"
            if path.exists():
                return path
        time.sleep(0.1)
    raise TimeoutError(
        f"pod {pod_uid}: no log of its container after {restarts} restarts within {seconds:.0f} s"
    )
