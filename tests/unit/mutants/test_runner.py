"""Only a named test that passes as the code is, and fails with the fault, kills a mutant."""

import subprocess

import pytest

from tests.mutants.mutant import load
from tests.mutants.run_tests import TIMED_OUT, optional_engines
from tests.mutants.runner import (
    KILLED,
    NO_BASELINE,
    NO_EDIT,
    NO_RUN,
    SURVIVED,
    Verdict,
    judge,
    try_all,
)

pytestmark = pytest.mark.slow  # `make test` runs no mutant

PYPROJECT = """
[tool.pytest.ini_options]
pythonpath = ["operator", "workloads", "."]
addopts = "--import-mode=importlib"
"""
CODE = """
import time


def double(x):
    return 2 * x
#
def nap():
    time.sleep(0)
"""
TESTS = """
import subprocess, sys
import pytest
from sums import double, nap

@pytest.fixture
def four():
    return double(2)

def test_double():
    assert double(2) == 4

@pytest.mark.parametrize("x", [0, 1])
def test_cases(x):
    assert double(x) == 2 * x

def test_zero():
    assert double(0) == 0

def test_fixture(four):
    pass

def test_nap():
    nap()

def test_elsewhere():
    code = "import sums; print(sums.double(3))"
    assert subprocess.check_output([sys.executable, "-c", code]) == b"6\\n"

def test_wrong():
    assert double(2) == 5

@pytest.mark.skip
def test_skipped():
    pass
"""
EDIT = """
file = "workloads/sums.py"
before = "{}"
after = "{}"
"""
RIGHT = "return 2 * x"
NAP = EDIT.format("sleep(0)", "sleep(60)")
SQUARE = EDIT.format(RIGHT, "return x * x")  # right for 0 and 2, wrong for 1
TRIPLE = EDIT.format(RIGHT, "return 3 * x")
ELSEWHERE = TRIPLE.replace("sums.py", "other.py")
FILE = "tests/test_sums.py"
MUTANTS = {
    "killed": ([f"{FILE}::test_double"], TRIPLE),
    "killed by a case": ([f"{FILE}::test_cases"], SQUARE),
    "killed in another process": ([f"{FILE}::test_elsewhere"], TRIPLE),
    "survives": ([f"{FILE}::test_double", f"{FILE}::test_zero"], TRIPLE),
    "does not apply": ([f"{FILE}::test_double"], ELSEWHERE),
    "no import": ([f"{FILE}::test_double"], EDIT.format(RIGHT, "return (")),
    "no name": ([f"{FILE}::test_double"], EDIT.format(RIGHT, "return y")),
    "no fixture": ([f"{FILE}::test_fixture"], EDIT.format(RIGHT, "raise ValueError")),
    "hangs": ([f"{FILE}::test_nap"], "timeout = 0.5" + NAP),
    "killed alone": ([f"{FILE}::test_double"], "alone = true" + TRIPLE),
    "wrong without the fault": ([f"{FILE}::test_wrong"], TRIPLE),
    "skipped": ([f"{FILE}::test_skipped"], TRIPLE),
    "no such test": ([f"{FILE}::test_other"], TRIPLE),
    "no such file": (["tests/test_other.py"], TRIPLE),
}


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verdict]:
    """What becomes of all of them, in a project of their own."""
    root = tmp_path_factory.mktemp("project")
    files = {"pyproject.toml": PYPROJECT, "workloads/sums.py": CODE, FILE: TESTS}
    for name, text in files.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
    folder = tmp_path_factory.mktemp("mutants")
    rows = [
        f'["{name}"]\npromise = "Sums are right."\nfails = {tests}\n{rest}\n'
        for name, (tests, rest) in MUTANTS.items()
    ]
    (folder / "sums.toml").write_text("".join(rows))
    reported: list[Verdict] = []
    found = try_all(load(folder), root=root, jobs=2, report=reported.append)
    assert reported[-1].mutant.name == "sums/killed alone"
    names = {f"sums/{name}" for name in MUTANTS}
    assert {v.mutant.name for v in reported} == {v.mutant.name for v in found} == names
    assert (root / "workloads/sums.py").read_text() == CODE
    return {verdict.mutant.name.removeprefix("sums/"): verdict for verdict in found}


@pytest.mark.parametrize(
    "name",
    [
        "killed",
        "killed by a case",
        "killed in another process",
        "killed alone",
        "hangs",
    ],
)
def test_a_mutant_is_killed(verdicts: dict[str, Verdict], name: str) -> None:
    assert verdicts[name].outcome == KILLED, verdicts[name]


def test_a_mutant_survives_when_one_of_its_tests_passes(verdicts: dict[str, Verdict]) -> None:
    assert verdicts["survives"].outcome == SURVIVED
    assert "test_zero" in verdicts["survives"].details
    assert "test_double" not in verdicts["survives"].details


def test_an_edit_that_does_not_apply_is_reported_with_its_file(
    verdicts: dict[str, Verdict],
) -> None:
    assert verdicts["does not apply"].outcome == NO_EDIT
    assert "workloads/other.py" in verdicts["does not apply"].details


@pytest.mark.parametrize("name", ["no import", "no name", "no fixture"])
def test_code_that_does_not_run_kills_nothing(verdicts: dict[str, Verdict], name: str) -> None:
    assert verdicts[name].outcome == NO_RUN, verdicts[name]


@pytest.mark.parametrize(
    "name", ["wrong without the fault", "skipped", "no such test", "no such file"]
)
def test_a_test_must_pass_without_the_fault(verdicts: dict[str, Verdict], name: str) -> None:
    assert verdicts[name].outcome == NO_BASELINE
    assert "tests/test_" in verdicts[name].details


def test_a_hang_kills_nothing_unless_the_mutant_says_so(verdicts: dict[str, Verdict]) -> None:
    mutant = verdicts["hangs"].mutant
    found = {f"{FILE}::test_nap": (TIMED_OUT, "Timeout (>60.0s) from pytest-timeout.")}
    assert judge(mutant, found) == (KILLED, "")
    assert judge(mutant.model_copy(update={"timeout": None}), found)[0] == NO_RUN


def test_tests_of_optional_engines_are_asked_for_by_the_engine() -> None:
    suite = "tests/process/engines/test_checkpoints.py::test_it"
    assert optional_engines([f"{suite}[qwen3-megatron-fsdp2]"]) == {"megatron", "fsdp2"}
    assert optional_engines([f"{suite}[fsdp2-DP2]", "tests/unit/test_a.py::test_b[fsdp]"]) == set()
