"""Writes the chart's dashboards, or says which file is not what the code makes."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from hack.monitoring.dashboards.fleet import fleet
from hack.monitoring.dashboards.job import job
from hack.monitoring.dashboards.weight_sync import weight_sync

if TYPE_CHECKING:
    from collections.abc import Callable

    from grafana_foundation_sdk.builders.dashboard import Dashboard

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "charts" / "rollcall-operator" / "files" / "dashboards"
COMMAND = "python -m hack.monitoring.dashboards --write"
DASHBOARDS: dict[str, Callable[[], Dashboard]] = {
    "fleet": fleet,
    "job": job,
    "weight-sync": weight_sync,
}
"""By the name of the file."""


def rendered() -> dict[Path, str]:
    """What each file of the chart must hold."""
    encoder = JSONEncoder(sort_keys=True, indent=2)
    return {
        FOLDER / f"{name}.json": encoder.encode(make().build()) + "\n"
        for name, make in DASHBOARDS.items()
    }


def main() -> int:
    """0; with `--check` 1 if a file differs, is missing or is made by no code."""
    parser = argparse.ArgumentParser(
        prog="python -m hack.monitoring.dashboards", description=__doc__
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="write the files")
    what.add_argument("--check", action="store_true", help="exit with 1 if a file differs")
    wanted, there = rendered(), set(FOLDER.glob("*"))
    if parser.parse_args().write:
        FOLDER.mkdir(exist_ok=True)
        for path, text in wanted.items():
            path.write_text(text, encoding="utf-8")
        for path in there - set(wanted):
            path.unlink()
        return 0
    wrong = [
        path for path in there | set(wanted) if path not in wanted or _differs(path, wanted[path])
    ]
    for path in sorted(wrong):
        print(
            f"{path.relative_to(ROOT)} is not what the code makes: run {COMMAND}", file=sys.stderr
        )
    return 1 if wrong else 0


def _differs(path: Path, text: str) -> bool:
    return not path.exists() or path.read_text(encoding="utf-8") != text


if __name__ == "__main__":
    sys.exit(main())
