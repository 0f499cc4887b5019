"""The tables of docs/testing.md and CONTRIBUTING.md: `--write` or `--check`.

Made from the parts, from the areas of the tree, and from the last full run.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from hack.test_parts import changes, record
from hack.test_parts.parts import PARTS

if TYPE_CHECKING:
    from pathlib import Path

TESTING = changes.ROOT / "docs" / "testing.md"
CONTRIBUTING = changes.ROOT / "CONTRIBUTING.md"


_COLUMNS = (
    *("part", "in the gate", "what it proves", "minutes", "of the processor"),
    *("passed", "failed", "skipped", "commit", "date"),
)


def parts_table(outcomes: dict[str, record.Outcome]) -> str:
    """Every part with its last run; a column is empty where it never ran."""
    rows = [
        f"| {' | '.join(_COLUMNS)} |",
        "|---" * len(_COLUMNS) + "|",
    ]
    for part in PARTS:
        ran = outcomes.get(part.name)
        figures = (
            (
                *(f"{ran.minutes:g}", f"{ran.processor_minutes:g}", str(ran.passed)),
                *(str(ran.failed), str(sum(ran.skipped.values())), f"`{ran.commit[:8]}`", ran.date),
            )
            if ran
            else ("never ran", *[""] * 6)
        )
        gate = "yes" if part.gate else ""
        rows.append(f"| `{part.name}` | {gate} | {part.proves} | {' | '.join(figures)} |")
    skipped = _reasons(outcomes)
    return "\n".join([*rows, *(["", "Skipped:", "", *skipped] if skipped else [])])


def _reasons(outcomes: dict[str, record.Outcome]) -> list[str]:
    return [
        f"- `{name}`: {count} because: {reason}"
        for name, outcome in outcomes.items()
        for reason, count in outcome.skipped.items()
    ]


def areas_table() -> str:
    """What a change of each area needs, beside what every change needs."""
    rows = ["| change | paths | parts |", "|---|---|---|"]
    for area in changes.AREAS:
        paths = ", ".join(f"`{path}`" for path in area.paths)
        parts = " ".join((*changes.ALWAYS, *area.parts))
        rows.append(f"| {area.what} | {paths} | `{parts}` |")
    return "\n".join(rows)


def with_table(text: str, name: str, table: str) -> str:
    """A page with a table between its marks; ValueError if it has no such marks."""
    begin, end = f"<!-- {name}: written by python -m hack.test_parts.pages -->", "<!-- end -->"
    before, mark, rest = text.partition(begin)
    _, closing, after = rest.partition(end)
    if not (mark and closing):
        raise ValueError(f"no {begin} and {end}")
    return f"{before}{begin}\n\n{table}\n\n{end}{after}"


def write() -> None:
    """Writes the tables of both pages."""
    for page, text in _pages().items():
        page.write_text(text, encoding="utf-8")


def _pages() -> dict[Path, str]:
    """Both pages as they should be."""
    tables = (
        (TESTING, "parts", parts_table(record.load())),
        (CONTRIBUTING, "areas", areas_table()),
    )
    return {
        page: with_table(page.read_text(encoding="utf-8"), name, table)
        for page, name, table in tables
    }


def main() -> int:
    """Writes or checks both pages; returns 1 if one is not as its sources say."""
    options = argparse.ArgumentParser(description=__doc__)
    how = options.add_mutually_exclusive_group(required=True)
    how.add_argument("--write", action="store_true", help="write the tables")
    how.add_argument("--check", action="store_true", help="fail if one would change")
    if options.parse_args().write:
        write()
        return 0
    stale = [
        page.name for page, text in _pages().items() if page.read_text(encoding="utf-8") != text
    ]
    if stale:
        print(
            f"{', '.join(stale)} out of date: run python -m hack.test_parts.pages --write",
            file=sys.stderr,
        )
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
