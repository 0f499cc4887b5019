"""The file that trials are appended to: JSON lines, after one for each run that added some."""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hack.bench.recovery.trial_statistics import TrialResult

RUN = "run"


@dataclass(frozen=True, slots=True)
class TrialFile:
    """Results of one run, or of several if a later one was asked to continue it."""

    path: Path

    def begin(self, run: dict[str, Any]) -> None:
        """Note a run: the trials that follow are its own."""
        self._append([{RUN: run}])

    def add(self, results: Sequence[TrialResult], *, load: float) -> None:
        """Append a trial's results; `load` is the machine's load average when it began."""
        at = {"time": round(time.time()), "load": round(load, 1)}
        self._append([result.encode() | at for result in results])

    def runs(self) -> list[dict[str, Any]]:
        """The runs that made the trials, in their order."""
        return [line[RUN] for line in self._lines() if RUN in line]

    def results(self) -> list[TrialResult]:
        """All trials so far."""
        return [
            TrialResult(line["event"], line["seconds"], line["details"])
            for line in self._lines()
            if RUN not in line
        ]

    def completed(self, event: str) -> int:
        """How many trials of an event came to their end."""
        return sum(one.event == event and one.seconds is not None for one in self.results())

    def _lines(self) -> list[dict[str, Any]]:
        text = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def _append(self, lines: Sequence[dict[str, Any]]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
