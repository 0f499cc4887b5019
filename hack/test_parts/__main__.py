"""`make test` runs the gate, or the parts of `PARTS=`; `make test-full` runs every part.

`PARTS=changed` runs those that the changes since the commit `SINCE=` need. A full run keeps what
became of each part in tests/full-run.json; with `--continue` it leaves out those that passed there
and whose paths have not changed since.
"""

from __future__ import annotations

import argparse
import json
import sys

from hack.test_parts import changes, pages, record, running
from hack.test_parts.parts import NAMES, PARTS, Part, named
from hack.usual_time import MachineSpeed

CHANGED = "changed"


def main() -> int:
    """Runs parts; returns 1 if one failed. The gate ends with its first failure."""
    arguments = _arguments()
    outcomes = record.load()
    if arguments.list_full:
        print(json.dumps(NAMES))
        return 0
    if arguments.due:
        for name, reason in record.due(outcomes).items():
            print(f"{name}: {reason}")
        return 0
    chosen = _chosen(arguments, outcomes)
    took = list[str]()
    failed = list[str]()
    total = [0.0, 0.0]
    speed = MachineSpeed()
    for number, part in enumerate(chosen, 1):
        usual = outcomes.get(part.name)
        expected = speed.expected(60 * usual.minutes) if usual else ""
        announce(_heading(part, number, chosen, expected))
        outcome, broken = running.run(part)
        if usual and not broken:
            speed.finished(usual_s=60 * usual.minutes, took_s=60 * outcome.minutes)
        if arguments.full:
            record.save(part.name, outcome)
            pages.write()  # lint compares them
        total = [total[0] + outcome.minutes, total[1] + outcome.processor_minutes]
        took.append(f"{part.name} {outcome.minutes:g} ({outcome.processor_minutes:g})")
        if broken:
            failed.append(part.name)
            announce(f'{part.name} failed: {broken}; repeat it: make test PARTS="{part.name}"')
            if not arguments.full:
                break
    announce(
        f"minutes, and of the processor, the whole machine's: {', '.join(took) or 'no part'}; "
        f"all {total[0]:.1f} ({total[1]:.1f})"
    )
    if failed:
        announce(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def _chosen(arguments: argparse.Namespace, outcomes: dict[str, record.Outcome]) -> list[Part]:
    if arguments.part == [CHANGED]:
        paths = changes.paths_since(arguments.since)
        if paths is None:
            raise SystemExit(f"SINCE={arguments.since}: no such commit in this clone")
        return named(sorted(changes.parts_of(paths)))
    if arguments.part:
        chosen = named(arguments.part)
    else:
        chosen = [part for part in PARTS if arguments.full or part.gate]
    if arguments.go_on:
        due = record.due(outcomes)
        chosen = [part for part in chosen if part.name in due]
    return chosen


def _heading(part: Part, number: int, chosen: list[Part], expected: str) -> str:
    rest = ", ".join(later.name for later in chosen[number:])
    times = f", {expected}" if expected else ""
    return f"part {number} of {len(chosen)}: {part.name}{times}{f'; then {rest}' if rest else ''}"


def announce(line: str) -> None:
    """One line between the parts' own output."""
    print(f"\n=== {line}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m hack.test_parts", description=__doc__)
    parser.add_argument(
        "part", nargs="*", choices=[[], CHANGED, *NAMES], help="which; default those of the gate"
    )
    parser.add_argument("--since", default="HEAD", help="the commit that `changed` compares with")
    parser.add_argument("--full", action="store_true", help="every part; keep their outcomes")
    parser.add_argument(
        "--continue", dest="go_on", action="store_true", help="only the parts that are due"
    )
    parser.add_argument("--due", action="store_true", help="list the parts that are due, and why")
    parser.add_argument("--list-full", action="store_true", help="print all names as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
