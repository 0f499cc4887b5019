"""A row says what it breaks and which tests find it; what is malformed or stale is reported."""

from pathlib import Path

import pytest

from tests.mutants.mutant import Mutant, MutantError, edited, load, problems

EDIT = """
file = "workloads/sums.py"
before = '''
    return 2 * x
'''
after = '''
    return 3 * x
'''
"""
HEADER = """
[tripled]
promise = "Sums are right."
fails = ["tests/test_sums.py::test_sums[case]"]
"""
ROW = HEADER + EDIT
SUMS = "def double(x):\n    return 2 * x\n"


def read(folder: Path, text: str) -> Mutant:
    (folder / "sums.toml").write_text(text)
    [mutant] = load(folder)
    return mutant


def tree(folder: Path, *, sums: str = SUMS) -> Path:
    for name, text in {
        "workloads/sums.py": sums,
        "tests/test_sums.py": "def test_sums():\n",
    }.items():
        (folder / name).parent.mkdir()
        (folder / name).write_text(text)
    return folder


def test_a_row_is_read(tmp_path: Path) -> None:
    mutant = read(tmp_path, HEADER + "alone = true\ntimeout = 2.5" + EDIT)
    assert mutant.name == "sums/tripled"
    assert mutant.promise == "Sums are right."
    assert mutant.fails == ("tests/test_sums.py::test_sums[case]",)
    assert (mutant.alone, mutant.timeout) == (True, 2.5)
    [edit] = mutant.edits
    assert (edit.before, edit.after) == ("    return 2 * x\n", "    return 3 * x\n")


def test_a_mutant_runs_beside_others_and_may_not_hang_unless_it_says_so(tmp_path: Path) -> None:
    mutant = read(tmp_path, ROW)
    assert (mutant.alone, mutant.timeout) == (False, None)


def test_edits_are_made_one_after_the_other(tmp_path: Path) -> None:
    back = EDIT.replace("2 * x", "4 * x").replace("3 * x", "2 * x").replace("4 * x", "3 * x")
    mutant = read(tmp_path, HEADER + "[[tripled.edits]]" + EDIT + "[[tripled.edits]]" + back)
    assert edited(mutant, tree(tmp_path)) == {"workloads/sums.py": SUMS}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ROW + "slow = true", r"\[tripled\] slow: Extra inputs"),
        ("promise = 'Twice.'\n" + ROW, r"promise is not a mutant"),
        (ROW + HEADER, "Cannot declare"),
        (ROW.replace("right.", "right"), "promise: must be one sentence"),
        (ROW.replace("right.", "right. Always."), "promise: must be one sentence"),
        (ROW.replace("promise", "promises"), "promise: Field required"),
        (HEADER.partition("fails")[0] + EDIT, "fails: Field required"),
        (HEADER.partition("fails")[0] + "fails = []" + EDIT, "fails: .* at least 1"),
        (ROW + "alone = 'yes'", "alone: .* valid boolean"),
        (ROW + "timeout = 'soon'", "timeout: .* valid number"),
        (ROW + "timeout = 0", "timeout: .* greater than 0"),
        (HEADER, "edits.0.file: Field required"),
        (ROW.replace("2 * x", "3 * x"), "before and after are the same"),
        (ROW.replace("workloads/", "tests/"), "changes the product"),
    ],
)
def test_what_is_malformed_is_refused_with_its_file(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(MutantError, match=message) as caught:
        read(tmp_path, text)
    assert "sums.toml" in str(caught.value)


def test_mutants_are_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "sums.toml").write_text(ROW + ROW.replace("tripled", "squared"))
    (tmp_path / "a.toml").write_text(ROW)
    names = [mutant.name for mutant in load(tmp_path)]
    assert names == ["a/tripled", "b/sums/squared", "b/sums/tripled"]


def test_a_row_that_fits_the_tree_has_no_problems(tmp_path: Path) -> None:
    assert problems([read(tmp_path, ROW)], tree(tmp_path)) == []


@pytest.mark.parametrize(
    ("row", "sums", "found"),
    [
        (ROW, "", "workloads/sums.py: `before` must occur once, and occurs nowhere"),
        (ROW, SUMS + SUMS, "workloads/sums.py: `before` must occur once, and occurs 2 times"),
        (ROW.replace("/sums.py", "/old.py"), SUMS, "workloads/old.py: no such file"),
        (ROW.replace("::test_sums", "::test_old"), SUMS, "no such test: tests/test_sums.py::test_"),
        (ROW.replace("test_sums.py", "test_old.py"), SUMS, "no such test: tests/test_old.py"),
    ],
)
def test_a_stale_row_is_found(tmp_path: Path, row: str, sums: str, found: str) -> None:
    [problem] = problems([read(tmp_path, row)], tree(tmp_path, sums=sums))
    assert problem.startswith(f"sums/tripled: {found}")


def test_a_promise_is_made_once(tmp_path: Path) -> None:
    (tmp_path / "sums.toml").write_text(ROW + ROW.replace("tripled", "squared"))
    found = problems(load(tmp_path), tree(tmp_path))
    assert found == ["sums/tripled: sums/squared has the same promise"]
