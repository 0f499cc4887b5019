"""Runs one part: its commands, what they took, and what became of their tests."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from hack.test_parts import changes
from hack.test_parts.record import Outcome

if TYPE_CHECKING:
    from hack.test_parts.parts import Part

BIN = Path(sys.executable).parent
# A test runner appends a line to this file: {"passed": 1, "failed": 0, "skipped": {"reason": 1}}.
RECORD_VARIABLE = "ROLLCALL_TEST_RECORD"
_TICKS = os.sysconf("SC_CLK_TCK")
_BUSY = (0, 1, 2, 5, 6)  # user, nice, system, irq, softirq: columns of proc_stat(5)


@dataclass(slots=True)
class _Counts:
    passed: int = 0
    failed: int = 0
    skipped: Counter[str] = field(default_factory=Counter)


def run(part: Part) -> tuple[Outcome, str]:
    """Runs the commands up to the first that fails; its text is the second value, or "".

    The outcome names the commit that was checked out when the part began.
    """
    counts, broken, commit = _Counts(), "", changes.head()
    began, busy = time.monotonic(), processor_seconds()
    with tempfile.TemporaryDirectory(prefix="test-part-") as folder:
        for number, command in enumerate(part.commands):
            if not _passes(command, Path(folder, str(number)), counts):
                broken = command
                break
    outcome = Outcome(
        commit=commit,
        date=datetime.now(UTC).date().isoformat(),
        minutes=round((time.monotonic() - began) / 60, 1),
        processor_minutes=round((processor_seconds() - busy) / 60, 1),
        passed=counts.passed,
        failed=counts.failed,
        skipped=dict(sorted(counts.skipped.items())),
    )
    return outcome, broken


def _passes(command: str, record: Path, counts: _Counts) -> bool:
    program, *arguments = shlex.split(command)
    found = program if program == "make" else str(BIN / program)
    environment = os.environ | {RECORD_VARIABLE: str(record)}
    status = subprocess.run(
        [found, *arguments], cwd=changes.ROOT, env=environment, check=False
    ).returncode
    lines = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
    for line in lines:
        counted = json.loads(line)
        counts.passed += counted["passed"]
        counts.failed += counted["failed"]
        counts.skipped.update(counted["skipped"])
    if not lines and status == 0:
        counts.passed += 1
    if status and not any(json.loads(line)["failed"] for line in lines):
        counts.failed += 1
    return status == 0


def processor_seconds() -> float:
    """What all processes of this machine have used since it started, of all cores.

    Pods are no descendants of the tests, and count too.
    """
    fields = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:]
    return sum(int(fields[column]) for column in _BUSY) / _TICKS
