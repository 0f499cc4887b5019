"""Progress that a person can follow: which step of how many, what runs now, how long it takes.

    with progress.plan((FETCH, BUILD)):
        with progress.step(FETCH):
            ...
        with progress.step(BUILD, log=log):
            ...

The time that a step should take is its usual one times the machine's speed in the steps before it.
On a terminal the steps that run are shown live, below the lines printed so far; elsewhere a line is
printed when a step begins and ends, and every 30 s between. Everything goes to standard error.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn

from hack.cluster.errors import ClusterError
from hack.usual_time import MachineSpeed, duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

LINE_EVERY_S = 30.0
_LOOK_EVERY_S = 0.25
_TAIL_BYTES = 2048
_START = time.monotonic()


@dataclass(frozen=True, slots=True)
class Step:
    """A part of a long command: what it does, and the seconds that it takes on 2 cores."""

    title: str
    usual_s: float


@dataclass(slots=True)
class _Running:
    title: str
    usual_s: float
    log: Path | None
    task: TaskID
    began: float = field(default_factory=time.monotonic)
    lines: int = 0

    def seconds(self) -> float:
        return time.monotonic() - self.began


class _Display:
    """Shows the steps that run, in a thread of its own."""

    def __init__(self, console: Console, steps: Sequence[Step]) -> None:
        self._titles = list(dict.fromkeys(step.title for step in steps))
        self._running: list[_Running] = []
        self._lock = threading.Lock()
        self._speed = MachineSpeed()
        self._bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[took]}"),
            TextColumn("[dim]{task.fields[now]}", markup=True),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)

    def open(self) -> None:
        self._bars.start()
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        self._bars.stop()

    def print(self, line: str) -> None:
        self._bars.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def begin(self, step: Step, log: Path | None) -> _Running:
        title = step.title
        if title in self._titles and len(self._titles) > 1:
            title = f"step {self._titles.index(title) + 1} of {len(self._titles)}: {title}"
        task = self._bars.add_task(title, total=step.usual_s, took="", now="")
        running = _Running(title, step.usual_s, log, task)
        with self._lock:
            self._running.append(running)
            expected = self._speed.expected(step.usual_s)
        say(f"{title} ({expected})")
        return running

    def end(self, running: _Running, *, done: bool) -> None:
        with self._lock:
            self._running.remove(running)
            if done:
                self._speed.finished(usual_s=running.usual_s, took_s=running.seconds())
        self._bars.remove_task(running.task)

    def _show(self) -> None:
        while not self._closed.wait(_LOOK_EVERY_S):
            with self._lock:
                for one in self._running:
                    self._show_one(one)

    def _show_one(self, one: _Running) -> None:
        seconds, now = one.seconds(), last_line(one.log)
        took, total = self._speed.so_far(seconds, one.usual_s), self._speed.seconds(one.usual_s)
        self._bars.update(one.task, total=total, completed=min(seconds, total), took=took, now=now)
        if self._bars.disable and seconds >= (one.lines + 1) * LINE_EVERY_S:
            one.lines += 1
            say(f"{one.title}: {took}" + (f"; now: {now}" if now else ""))


_display: _Display | None = None


def say(line: str) -> None:
    """Prints one line with the seconds since the program's start, on standard error."""
    text = f"[{time.monotonic() - _START:5.0f} s] {line}"
    if _display is not None:
        _display.print(text)
    else:
        print(text, file=sys.stderr, flush=True)


@contextmanager
def plan(steps: Sequence[Step], *, console: Console | None = None) -> Iterator[None]:
    """Numbers the steps that run in it, and shows them; within another plan it changes nothing.

    Args:
        steps: all that may run, in their order; one that is done already is passed over.
        console: where to show them; standard error if none is given.
    """
    global _display  # noqa: PLW0603  # there is one standard error
    if _display is not None:
        yield
        return
    _display = display = _Display(console or Console(stderr=True), steps)
    display.open()
    try:
        yield
    finally:
        display.close()
        _display = None


@contextmanager
def step(step: Step, *, log: Path | None = None) -> Iterator[None]:
    """Shows a step while it runs; an error that leaves it names it.

    Args:
        step: one of the plan's, or one by itself.
        log: a file whose last line says what runs now.
    """
    with plan((step,)):
        display = _display
        assert display is not None
        running = display.begin(step, log)
        done = False
        try:
            yield
            done = True
        except ClusterError as error:
            error.step = error.step or step.title
            raise
        finally:
            display.end(running, done=done)
        say(f"{running.title}: done in {duration(running.seconds())}")


def last_line(log: Path | None) -> str:
    """The last line of a log file that is not empty."""
    if log is None:
        return ""
    try:
        with log.open("rb") as data:
            data.seek(max(0, data.seek(0, 2) - _TAIL_BYTES))
            lines = data.read().decode(errors="replace").replace("\r", "\n").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
