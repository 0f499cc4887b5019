"""What became of each part when it ran last as part of `make test-full`: tests/full-run.json."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field

from hack.test_parts import changes
from hack.test_parts.parts import PARTS

FILE = changes.ROOT / "tests" / "full-run.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run of one part.

    Attributes:
        commit: the hash that was checked out.
        date: the day it ended, as 2026-01-31.
        minutes: from its begin to its end.
        processor_minutes: of all processes of the machine meanwhile, the cluster's included.
        passed, failed: tests; a command that is no test runner counts as one.
        skipped: how many tests were skipped, by the reason that they gave.
    """

    commit: str
    date: str
    minutes: float
    processor_minutes: float
    passed: int
    failed: int
    skipped: dict[str, int] = field(default_factory=dict)


def load() -> dict[str, Outcome]:
    """The last run of each part, by name; parts that never ran, or are no more, have none."""
    if not FILE.exists():
        return {}
    kept = json.loads(FILE.read_text(encoding="utf-8"))
    return {part.name: Outcome(**kept[part.name]) for part in PARTS if part.name in kept}


def save(name: str, outcome: Outcome) -> None:
    """Puts one part's run in the place of its last."""
    found = load() | {name: outcome}
    kept = {part.name: dataclasses.asdict(found[part.name]) for part in PARTS if part.name in found}
    FILE.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def due(outcomes: dict[str, Outcome]) -> dict[str, str]:
    """Why a full run is due, for each part that needs one."""
    found: dict[str, str] = {}
    needed: dict[str, set[str] | None] = {}
    for part in PARTS:
        outcome = outcomes.get(part.name)
        if outcome is None:
            found[part.name] = "never ran"
        elif outcome.failed:
            found[part.name] = f"failed on {outcome.date}"
        else:
            commit = outcome.commit
            if commit not in needed:
                paths = changes.paths_since(commit)
                needed[commit] = None if paths is None else changes.parts_of(paths)
            parts = needed[commit]
            if parts is None:
                found[part.name] = f"ran on {commit[:8]}, which this clone does not have"
            elif part.name in parts:
                found[part.name] = f"changed since {commit[:8]}"
    return found
