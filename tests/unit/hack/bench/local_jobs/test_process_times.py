"""Processor time of a run's processes, those that have ended included."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hack.bench.local_jobs.process_times import started, tree_cpu_seconds

TICKS = os.sysconf("SC_CLK_TCK")


def process(proc: Path, pid: int, parent: int, *ticks: int) -> None:
    """User, system, and the same of children that have ended."""
    fields = ["S", str(parent), *"0" * 9, *map(str, ticks), *"0" * 4, "100"]
    (proc / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "stat").write_text(f"{pid} (a ) name) {' '.join(fields)}\n")


def test_descendants_and_those_that_have_ended_count_and_others_do_not(tmp_path: Path) -> None:
    process(tmp_path, 10, 1, 1, 2, 4, 8)
    process(tmp_path, 11, 10, 16, 32, 0, 0)
    process(tmp_path, 12, 11, 64, 0, 0, 128)
    process(tmp_path, 13, 1, 1000, 1000, 1000, 1000)
    (tmp_path / "self").mkdir()
    assert tree_cpu_seconds(10, proc=tmp_path) == pytest.approx(255 / TICKS)


def test_a_tree_that_has_ended_has_taken_nothing_that_is_known(tmp_path: Path) -> None:
    process(tmp_path, 13, 1, 1, 1, 1, 1)
    assert tree_cpu_seconds(10, proc=tmp_path) == 0


def test_a_process_was_started_when_it_was() -> None:
    before = time.time()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        at = started(child.pid)
        child.kill()
    assert before - 1 / TICKS <= at <= time.time() + 1 / TICKS
