"""The next fault of an update: planned by the bench, made by the plugin in vLLM's processes."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import asdict, dataclass
from pathlib import Path

VARIABLE = "ROLLCALL_BENCH_FAULT"
"""The environment variable with the file's path."""
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class MadeFaultError(Exception):
    """The bench made it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`at`: the number of a tensor, of a module, or the name of a call."""

    phase: str
    at: int | str
    kind: str


class FaultFile:
    """Holds one fault, until it is made or taken back."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def plan(self, fault: Fault) -> None:
        """The plugin will make it, once."""
        scratch = self._path.with_suffix(".new")
        scratch.write_text(json.dumps(asdict(fault)))
        scratch.rename(self._path)

    def take_back(self) -> bool:
        """Whether the planned fault was not made; it will not be."""
        waits = self._path.exists()
        self._path.unlink(missing_ok=True)
        return waits


def make(phase: str, at: int | str) -> None:
    """Make the planned fault if it is to be made here."""
    path = Path(os.environ[VARIABLE])
    try:
        wanted = Fault(**json.loads(path.read_text()))
    except FileNotFoundError:
        return
    if (wanted.phase, wanted.at) != (phase, at):
        return
    path.unlink()
    if wanted.kind == "raise":
        raise MadeFaultError(f"in {phase} at {at}")
    os.kill(os.getpid(), SIGNALS[wanted.kind])
