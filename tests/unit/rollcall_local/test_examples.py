"""The examples are found by name, in a clone and in what the wheel installs."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from rollcall_local import examples
from rollcall_local.examples import NoSuchExampleError

ROOT = Path(__file__).parents[3]
NAMES = [
    "calculator",
    "extra-pool",
    "own-answers",
    "own-task",
    "plain-loop",
    "reverse",
    "reverse-no-sync",
    "reverse-vllm",
    "trl",
    "verl",
]


def test_a_clone_has_them() -> None:
    assert examples.names() == NAMES
    assert examples.find("reverse") == ROOT / "examples" / "reverse.yaml"
    assert examples.find("own-task") == ROOT / "examples" / "own-task"


def test_another_name_is_an_error_that_lists_all() -> None:
    with pytest.raises(NoSuchExampleError, match=r"revers: there is no such file.*reverse-no-sync"):
        examples.find("revers")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the wheel installs."""
    built, place = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("installed")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = built.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(place)
    return place


def said(installed: Path, program: str) -> list[str]:
    """The lines that a program prints which has what is installed alone, and no clone."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=installed,
        env={"PYTHONPATH": str(installed)},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.splitlines()


def test_the_wheel_has_them(installed: Path) -> None:
    program = """
from rollcall_local import examples
print(*examples.names(), sep="\\n")
print(examples.find("reverse"), examples.find("own-task") / "prompts.jsonl", sep="\\n")
"""
    *names, file, prompts = said(installed, program)
    assert names == NAMES
    for path, of_clone in ((file, "reverse.yaml"), (prompts, "own-task/prompts.jsonl")):
        assert Path(path).is_relative_to(installed)
        assert Path(path).read_text() == (ROOT / "examples" / of_clone).read_text()


def test_the_wheel_has_the_commands(installed: Path) -> None:
    program = """
from importlib.metadata import entry_points
print(*sorted(e.name for e in entry_points(group="rollcall.commands") if e.load()), sep="\\n")
"""
    assert said(installed, program) == ["check", "convert", "init", "local"]
