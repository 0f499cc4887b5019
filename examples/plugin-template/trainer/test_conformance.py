"""The suite that every training engine passes, on this one."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.process import engines

SUITE = Path(engines.__file__).parent


@pytest.mark.timeout(3600)
def test_the_engine_passes_the_suite() -> None:
    command = [sys.executable, "-m", "pytest", SUITE, "--engine", "example.my-trainer"]
    subprocess.run(command, cwd=SUITE.parents[2], check=True)
