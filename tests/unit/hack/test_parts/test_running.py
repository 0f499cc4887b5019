"""A part's outcome counts the tests of its commands, and what failed without a test."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hack.test_parts import changes, running
from hack.test_parts.parts import Part

RECORDS = """
import os
with open(os.environ["ROLLCALL_TEST_RECORD"], "a") as record:
    record.write('{"passed": 2, "failed": %d, "skipped": {"no GPU": 1}}\\n')
raise SystemExit(%d)
"""
WRITES = f"python -c {shlex.quote(RECORDS)}"
FAILS = "python -c 'raise SystemExit(2)'"
PASSES = "python -c 'pass'"


@pytest.mark.parametrize(
    ("commands", "counted", "broken"),
    [
        ([PASSES], (1, 0, {}), ""),
        ([PASSES, FAILS, PASSES], (1, 1, {}), FAILS),
        ([WRITES % (0, 0), PASSES], (3, 0, {"no GPU": 1}), ""),
        ([WRITES % (1, 1)], (2, 1, {"no GPU": 1}), WRITES % (1, 1)),
        # Such as an error in collecting the tests.
        ([WRITES % (0, 2)], (2, 1, {"no GPU": 1}), WRITES % (0, 2)),
    ],
)
def test_tests_and_commands_are_counted(
    commands: list[str], counted: tuple[int, int, dict[str, int]], broken: str
) -> None:
    outcome, failed = running.run(Part(name="one", proves="", commands=tuple(commands)))
    assert (outcome.passed, outcome.failed, outcome.skipped) == counted
    assert failed == broken


def test_the_processor_time_of_processes_that_are_no_children_counts() -> None:
    before = running.processor_seconds()
    loop = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    apart = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {loop!r}]).wait()"
    subprocess.run(["setsid", "--wait", sys.executable, "-c", apart], check=True)
    assert running.processor_seconds() - before >= 0.25


TESTS = """
import pytest

def test_passes(): pass
def test_fails(): assert False
@pytest.mark.skip(reason="no GPU here")
def test_is_skipped(): pass
"""


@pytest.mark.parametrize("processes", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)])
def test_pytest_records_its_tests(tmp_path: Path, processes: tuple[str, ...]) -> None:
    shutil.copy(changes.ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_three.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]")
    command = "pytest -q -p no:cacheprovider --rootdir {0} {1} {0}".format(
        tmp_path, " ".join(processes)
    )
    outcome, _ = running.run(Part(name="one", proves="", commands=(command,)))
    assert (outcome.passed, outcome.failed, outcome.skipped) == (1, 1, {"no GPU here": 1})
