"""Rules of the tree that no tool checks."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rollcall_operator.api.scalars import ROLLOUT_ENGINES, SYNC_ENGINES, TRAIN_ENGINES
from rollcall_runtime.rollout.inference_engine import inference_engines
from rollcall_runtime.sync import registry
from rollcall_runtime.train.train_engine import train_engines

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


CORE = ("rollcall_cli", "rollcall_operator", "rollcall_protocol", "rollcall_runtime")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_core_names_no_module_of_a_plug_in() -> None:
    """Imports are the import linter's to find; these are names in strings."""
    files = [path for core in CORE for path in ROOT.glob(f"*/{core}/**/*.py")]
    assert len(files) > 100
    assert [path for path in files if "rollcall_plugins" in path.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize(
    ("group", "built_in", "named"),
    [
        ("rollcall.sync_engines", {"auto", *registry._BUILTINS}, SYNC_ENGINES),
        ("rollcall.inference_engines", set(inference_engines._builtins), ROLLOUT_ENGINES),
        ("rollcall.train_engines", set(train_engines._builtins), TRAIN_ENGINES),
    ],
)
def test_the_api_names_the_built_in_engines_and_the_plug_ins(
    group: str, built_in: set[str], named: tuple[str, ...]
) -> None:
    plug_ins = set(PROJECT["entry-points"][group])
    assert built_in.isdisjoint(plug_ins)
    assert built_in | plug_ins == set(named)
    assert plug_ins - set(PROJECT["optional-dependencies"]) == set(), "an extra is missing"
