"""A mutant's header says what it breaks and which tests find it; what is malformed is refused."""

from pathlib import Path

import pytest

from tests.mutants.mutant import Mutant, MutantError, load, parse

DIFF = """
--- a/workloads/sums.py
+++ b/workloads/sums.py
@@ -1 +1 @@
-a
+b
"""
HEADER = "Promise: Sums are right.\nFails: tests/unit/test_sums.py::test_sums\n"


def read(folder: Path, text: str) -> Mutant:
    path = folder / "one.patch"
    path.write_text(text)
    return parse(path, name="sums/one")


def test_a_header_is_read(tmp_path: Path) -> None:
    more = "Fails: tests/unit/test_more.py\nQuick: yes\nTimeout: 2.5\n"
    mutant = read(tmp_path, HEADER + more + DIFF)
    assert mutant.promise == "Sums are right."
    assert mutant.tests == ("tests/unit/test_sums.py::test_sums", "tests/unit/test_more.py")
    assert (mutant.quick, mutant.timeout) == (True, 2.5)
    assert mutant.patched == ("workloads/sums.py",)


def test_a_mutant_is_not_quick_and_may_not_hang_unless_it_says_so(tmp_path: Path) -> None:
    mutant = read(tmp_path, HEADER + DIFF)
    assert (mutant.quick, mutant.timeout) == (False, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER + "Slow: yes\n" + DIFF, "'Slow: yes' is none of"),
        (HEADER + "a remark\n" + DIFF, "'a remark' is none of"),
        (HEADER + "Promise: Twice.\n" + DIFF, "Promise is given twice"),
        (HEADER.replace("right.", "right") + DIFF, "one sentence"),
        (HEADER.replace("right.", "right. Always.") + DIFF, "one sentence"),
        ("Promise: Sums are right.\n" + DIFF, "no Fails line"),
        (HEADER + "Quick: true\n" + DIFF, "yes or no"),
        (HEADER + "Timeout: soon\n" + DIFF, "positive number of seconds"),
        (HEADER + "Timeout: 0\n" + DIFF, "positive number of seconds"),
        (HEADER, "no unified diff"),
        (HEADER + DIFF.replace("workloads/", "tests/"), "changes the product"),
    ],
)
def test_what_is_malformed_is_refused_with_its_file(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(MutantError, match=message) as caught:
        read(tmp_path, text)
    assert "one.patch" in str(caught.value)


def test_mutants_are_named_by_their_paths(tmp_path: Path) -> None:
    for name in ("b/second", "a/first"):
        path = tmp_path / f"{name}.patch"
        path.parent.mkdir()
        path.write_text(HEADER + DIFF)
    (tmp_path / "a" / "notes.md").write_text("no mutant")
    assert [mutant.name for mutant in load(tmp_path)] == ["a/first", "b/second"]
