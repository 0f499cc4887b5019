"""Tests of one group run in one process, as they share what two must not make."""

import shutil
import subprocess
import sys
from pathlib import Path

TESTS = """
import os
import pytest

@pytest.fixture(scope="module")
def shared():
    return os.getpid()

@pytest.mark.parametrize("number", range(6))
def test_shares(shared, number):
    with open("module", "a") as file:
        file.write(f"{os.getpid()}\\\\n")

@pytest.mark.xdist_group("one")
@pytest.mark.parametrize("number", range(6))
def test_is_marked(number):
    with open("marked", "a") as file:
        file.write(f"{os.getpid()}\\\\n")
"""


def test_a_group_stays_in_one_process(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).parents[1] / "conftest.py", tmp_path)
    (tmp_path / "test_groups.py").write_text(TESTS.replace("\\\\", "\\"))
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = xdist_group\n")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("module", "marked"):
        processes = (tmp_path / name).read_text().split()
        assert len(processes) == 6
        assert len(set(processes)) == 1, name
