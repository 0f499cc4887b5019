"""`make mutants`: put each fault into a copy of the tree; the tests that it names must fail.

Exits 1 when a mutant survives, does not apply, or its tests cannot be run. It tries those of the
virtual environment that it runs in. With `--check` it runs no test: it exits 1 when a table does
not fit the tree.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from tests.mutants.mutant import Mutant, MutantError, load, problems
from tests.mutants.runner import KILLED, Verdict, try_all

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
ENVIRONMENT = Path(sys.prefix).name.removeprefix(".venv").removeprefix("-")
RECORD = "ROLLCALL_TEST_RECORD"  # where `hack.test_parts` reads how many were killed


def main() -> int:
    """Try the mutants that the arguments choose, and print what became of them."""
    arguments = _arguments()
    try:
        mutants = _chosen(load(FOLDER), names=arguments.names)
    except MutantError as error:
        print(error, file=sys.stderr)
        return 1
    if not mutants:
        print("no mutant has such a name", file=sys.stderr)
        return 1
    if arguments.check:
        found = problems(mutants, ROOT)
        print("\n".join(found) or f"{len(mutants)} mutants fit the tree")
        return 1 if found else 0
    if arguments.list:
        for mutant in mutants:
            print(f"{mutant.name}: {mutant.promise}")
        return 0
    mutants = [mutant for mutant in mutants if mutant.environment == ENVIRONMENT]
    record = os.environ.pop(RECORD, "")  # before the mutants' own tests begin, which would write
    began, seen = time.monotonic(), 0

    def report(verdict: Verdict) -> None:
        nonlocal seen
        seen += 1
        print(f"[{seen}/{len(mutants)}] {_line(verdict)}", flush=True)

    verdicts = try_all(mutants, root=ROOT, jobs=arguments.jobs, report=report)
    wrong = [verdict for verdict in verdicts if verdict.outcome != KILLED]
    for verdict in wrong:
        print(f"\n{verdict.outcome}: {verdict.mutant.name}")
        print(f"  {verdict.mutant.promise}")
        print("  " + verdict.details.replace("\n", "\n  "))
    killed, seconds = len(verdicts) - len(wrong), time.monotonic() - began
    print(f"\n{killed} of {len(verdicts)} mutants killed, in {seconds:.0f} s")
    if record:
        counts = {"passed": killed, "failed": len(wrong), "skipped": {}}
        Path(record).write_text(json.dumps(counts) + "\n", encoding="utf-8")
    return 1 if wrong else 0


def _line(verdict: Verdict) -> str:
    mutant = verdict.mutant
    return f"{verdict.outcome:8} {verdict.seconds:5.1f} s  {mutant.name:44} {mutant.promise}"


def _chosen(mutants: Sequence[Mutant], *, names: Sequence[str]) -> list[Mutant]:
    return [
        mutant
        for mutant in mutants
        if not names or any(fnmatch(mutant.name, name) for name in names)
    ]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="such as protocol/*; default all")
    parser.add_argument("--jobs", type=int, help="how many at once; default one for each core")
    parser.add_argument("--check", action="store_true", help="compare with the tree, run no test")
    parser.add_argument("--list", action="store_true", help="print the promises, run nothing")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
