"""Rules of the tree that no tool checks."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_source_folders_are_no_packages() -> None:
    """A package named `operator` would hide the standard library's, and break everything."""
    assert not (ROOT / "operator" / "__init__.py").exists()
    assert not (ROOT / "workloads" / "__init__.py").exists()


def test_no_test_folder_hides_the_standard_librarys_operator() -> None:
    assert not list((ROOT / "tests").rglob("operator"))


def test_the_standard_librarys_operator_is_what_python_finds_in_the_root() -> None:
    command = [sys.executable, "-c", "import operator; print(operator.__file__)"]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=30)
    assert Path(out.stdout.strip()).name == "operator.py"
