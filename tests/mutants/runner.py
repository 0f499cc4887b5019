"""Tries mutants side by side: their tests must pass in the tree as it is, and fail in theirs."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.forked_runs import TEST_SECONDS, Found, RunError, TestRuns
from tests.mutants.mutant import EditError, Mutant, edited, file_of
from tests.mutants.run_tests import BROKEN, FAILED, PASSED, TIMED_OUT, matches

KILLED, SURVIVED = "killed", "SURVIVED"
NO_EDIT, NO_RUN, NO_BASELINE = "DOES NOT APPLY", "DOES NOT RUN", "TESTS DO NOT PASS"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant, in how many seconds; `details` says what to look at."""

    mutant: Mutant
    outcome: str
    details: str = ""
    seconds: float = 0.0


def try_all(
    mutants: Sequence[Mutant],
    *,
    root: Path,
    jobs: int | None = None,
    report: Callable[[Verdict], None] | None = None,
) -> list[Verdict]:
    """Try each in a copy of the tree at `root`; `report` gets each verdict as it is known."""
    jobs = jobs or os.cpu_count() or 1
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        pristine = copy_tree(root, Path(folder, "pristine"))
        for chosen, at_once in (
            ([mutant for mutant in mutants if not mutant.alone], jobs),
            ([mutant for mutant in mutants if mutant.alone], 1),
        ):
            for verdict in _try_some(chosen, pristine, jobs=at_once):
                verdicts.append(verdict)
                if report:
                    report(verdict)
    return sorted(verdicts, key=lambda verdict: verdict.mutant.name)


def _try_some(mutants: Sequence[Mutant], pristine: Path, *, jobs: int) -> Iterator[Verdict]:
    runs = TestRuns()
    with ThreadPoolExecutor(jobs) as pool:
        try:
            baseline = _baseline(mutants, pristine, runs=runs, pool=pool, jobs=jobs)
            futures = [
                pool.submit(_try, mutant, pristine, baseline=baseline, runs=runs)
                for mutant in mutants
            ]
            for future in as_completed(futures):
                yield future.result()
        except BaseException:  # Ctrl-C too: the tests are in process groups of their own
            runs.stop()
            pool.shutdown(cancel_futures=True)
            raise


def judge(mutant: Mutant, found: Found) -> tuple[str, str]:
    """The verdict on what the named tests did with the fault in place, and why."""
    wanted = {FAILED, TIMED_OUT} if mutant.timeout else {FAILED}
    broken, green = list[str](), list[str]()
    for test in mutant.fails:
        outcomes = _of(test, found)
        if any(outcome in wanted for outcome, _ in outcomes):
            continue
        bad = [f"{outcome} {message}" for outcome, message in outcomes if outcome != PASSED]
        (broken if bad or not outcomes else green).append(f"{test}: {'; '.join(bad) or 'passed'}")
    if broken:
        return NO_RUN, "\n".join(["a test must fail, not break or hang:", *broken])
    if green:
        return SURVIVED, "\n".join(["these tests pass with the fault in place:", *green])
    return KILLED, ""


def _baseline(
    mutants: Iterable[Mutant],
    tree: Path,
    *,
    runs: TestRuns,
    pool: ThreadPoolExecutor,
    jobs: int,
) -> Found:
    """All named tests in the tree as it is, once, in as many processes as there are jobs."""
    tests = {test for mutant in mutants for test in mutant.fails}
    files = sorted({file_of(test) for test in tests if (tree / file_of(test)).exists()})
    parts = [[test for test in tests if file_of(test) in files[n::jobs]] for n in range(jobs)]

    def run(wanted: list[str]) -> Found:
        try:
            return runs.run(tree, sorted(wanted))
        except RunError as error:
            return {file_of(test): (BROKEN, str(error)) for test in wanted}

    found = dict[str, tuple[str, str]]()
    for part in pool.map(run, filter(None, parts)):
        found |= part
    return found


def _try(mutant: Mutant, pristine: Path, *, baseline: Found, runs: TestRuns) -> Verdict:
    if unfit := [test for test in mutant.fails if not _passes(_of(test, baseline))]:
        lines = [f"{test}: {_of(test, baseline) or 'no such test'}" for test in unfit]
        return Verdict(mutant, NO_BASELINE, "\n".join(["without the fault:", *lines]))
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-", dir=pristine.parent) as folder:
        tree = Path(shutil.copytree(pristine, Path(folder, "tree"), symlinks=True))
        try:
            apply(mutant, tree)
            found = runs.run(tree, mutant.fails, timeout=mutant.timeout or TEST_SECONDS)
        except EditError as error:
            return Verdict(mutant, NO_EDIT, str(error))
        except RunError as error:
            return Verdict(mutant, NO_RUN, str(error), time.monotonic() - began)
    return Verdict(mutant, *judge(mutant, found), time.monotonic() - began)


def _of(test: str, found: Found) -> list[tuple[str, str]]:
    """What became of a named test's cases, and of its file if that could not be loaded."""
    file = file_of(test)
    return [
        outcome
        for node, outcome in found.items()
        if matches(node, test) or (node == file and outcome[0] == BROKEN)
    ]


def _passes(outcomes: Sequence[tuple[str, str]]) -> bool:
    return bool(outcomes) and all(outcome == PASSED for outcome, _ in outcomes)


def copy_tree(root: Path, to: Path) -> Path:
    """Copy the files that git knows and those that it does not ignore, as they are now."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    for name in listing.stdout.split("\0"):
        if name and (root / name).exists():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, to / name, follow_symlinks=False)
    return to


def apply(mutant: Mutant, tree: Path) -> None:
    """Put the fault into a tree. Raises EditError."""
    for name, text in edited(mutant, tree).items():
        (tree / name).write_text(text, encoding="utf-8")
        # Compiled code goes by the source's time in whole seconds, and its size.
        for compiled in (tree / name).parent.glob(f"__pycache__/{Path(name).stem}.*.pyc"):
            compiled.unlink()
