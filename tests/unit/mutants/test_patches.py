"""All mutants are well formed, name tests that exist, and apply to the tree as it is."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.mutants import __main__ as command
from tests.mutants.mutant import Mutant, file_of, load

MUTANTS = load(command.FOLDER)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_its_tests_exist(mutant: Mutant) -> None:
    for test in mutant.tests:
        path = command.ROOT / file_of(test)
        assert path.exists(), test
        name = test.partition("::")[2].partition("[")[0]
        assert not name or re.search(rf"def {name}\(", path.read_text()), test


def test_their_patches_apply() -> None:
    failed = [mutant.name for mutant in MUTANTS if not applies(mutant.path)]
    assert failed == [], "make these edits again: docs/testing.md"


def applies(patch: Path) -> bool:
    command_line = ["git", "apply", "--check", str(patch)]
    return (
        subprocess.run(command_line, cwd=command.ROOT, capture_output=True, check=False).returncode
        == 0
    )


def test_promises_are_made_once() -> None:
    promises = [mutant.promise for mutant in MUTANTS]
    twice = {promise for promise in promises if promises.count(promise) > 1}
    assert twice == set()
