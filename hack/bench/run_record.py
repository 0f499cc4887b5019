"""What a result must say about the run that it came from: commit, machine, date, load."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"  # git ignores it; what the docs show is copied from there


def run_record(settings: object = None) -> dict[str, Any]:
    """Made when a measurement begins: it goes in front of the figures.

    Args:
        settings: what the measurement was asked to do, such as its command line's options.
    """
    return {
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted_changes": _git("status", "--porcelain") != "",
        "began": _now(),
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "memory_gib": round(_memory_bytes() / 2**30, 1),
            "kernel": platform.release(),
        },
        "load_average": _load(),
        "settings": settings,
    }


def run_end() -> dict[str, Any]:
    """Made when a measurement ends: the load includes that of the measurement itself."""
    return {"ended": _now(), "load_average_at_end": _load()}


def new_result(name: str, run: dict[str, Any]) -> Path:
    """A path for the results of this run, which no earlier run has written to."""
    RESULTS.mkdir(exist_ok=True)
    began = datetime.fromisoformat(run["began"]).strftime("%Y%m%d-%H%M%S")
    return RESULTS / f"{name}-{began}-{run['commit'][:8]}.jsonl"


def finish(name: str, run: dict[str, Any], figures: dict[str, Any]) -> None:
    """Print the run and its figures as one line of JSON, and keep that in a file of its own."""
    line = json.dumps({"run": run | run_end(), **figures})
    path = new_result(name, run)
    path.write_text(line + "\n", encoding="utf-8")
    print(f"kept in {path}", file=sys.stderr)
    print(line)


def caption(run: dict[str, Any]) -> str:
    """One line for a chart or a table."""
    machine = run["machine"]
    changes = " with uncommitted changes" if run["uncommitted_changes"] else ""
    end = f", {run['load_average_at_end']:g} at the end" if "load_average_at_end" in run else ""
    return (
        f"commit {run['commit'][:8]}{changes}, {run['began'][:16].replace('T', ' ')} UTC, "
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']:g} GiB, "
        f"load {run['load_average']:g} at the start{end}"
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _load() -> float:
    """The machine's load average of the last minute."""
    return round(os.getloadavg()[0], 1)


def _git(*words: str) -> str:
    """What git says of this tree; "unknown" where it is no checkout, as in an unpacked archive."""
    done = subprocess.run(
        ["git", "-C", ROOT, *words], capture_output=True, text=True, check=False, timeout=30
    )
    return "unknown" if done.returncode else done.stdout.strip()


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
