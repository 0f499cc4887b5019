"""The parts run every test exactly once; those that must be named are left out otherwise."""

import itertools
import shlex
import sys

import pytest
from _pytest.mark.expression import Expression

from hack import test_parts
from hack.test_parts import PARTS

MARKS = ("slow", "alone")
SLOW_SUITES = ("tests/unit", "tests/process")
SUITES = (*SLOW_SUITES, "tests/apiserver", "tests/cluster/jobs")


def selections() -> list[tuple[set[str], Expression]]:
    """Folders and mark expression of each pytest command."""
    found = []
    for command in (command for part in PARTS for command in part.commands):
        program, *words = shlex.split(command)
        if program == "pytest":
            expression = words[words.index("-m") + 1] if "-m" in words else "not never"
            folders = {word for word in words if word.startswith("tests/")}
            found.append((folders, Expression.compile(expression)))
    return found


def runs(suite: str, *marks: str) -> int:
    """How many commands run a test of the suite with these marks."""

    def has(name: str, /, **_: object) -> bool:
        return name in marks

    return sum(expression.evaluate(has) for folders, expression in selections() if suite in folders)


@pytest.mark.parametrize("suite", SUITES)
def test_a_test_runs_once_whatever_its_marks(suite: str) -> None:
    for count in range(len(MARKS) + 1):
        for marks in itertools.combinations(MARKS, count):
            slow = "slow" in marks and suite in SLOW_SUITES and "alone" not in marks
            whole = "alone" not in marks and suite == "tests/apiserver"
            named_only = int(slow or whole)
            assert runs(suite, *marks) == 1 + named_only, marks


@pytest.mark.parametrize(
    ("suite", "part", "marks"),
    [
        *((suite, "slow", ("slow", "long")) for suite in SLOW_SUITES),
        ("tests/apiserver", "integration", ("long",)),
    ],
)
def test_a_long_test_runs_when_it_is_named(suite: str, part: str, marks: tuple[str, ...]) -> None:
    by_name = {part.name: part for part in PARTS}
    assert (by_name[part].named_only, by_name[f"{part}-whole"].named_only) == (False, True)
    assert runs(suite, *marks) == 1


def test_the_quick_tests_of_training_engines_run_always_and_the_slow_ones_when_named() -> None:
    by_name = {part.name: part for part in PARTS}
    assert not by_name["engines"].named_only
    assert by_name["engines-whole"].named_only
    assert (runs("tests/process/engines"), runs("tests/process/engines", "slow")) == (2, 1)


@pytest.mark.parametrize(
    ("mark", "name"),
    [("every_engine", "e2e-engines"), ("vllm", "e2e-vllm"), ("vllm_soak", "soak-vllm")],
)
def test_end_to_end_tests_with_an_image_of_their_own_run_when_they_are_named(
    mark: str, name: str
) -> None:
    assert {part.name: part for part in PARTS}[name].named_only
    assert runs("tests/cluster/jobs", mark) == runs("tests/cluster/jobs", mark, "alone") == 1


def test_each_test_of_the_local_cluster_runs_in_one_part() -> None:
    files = sorted(
        path.name for path in (test_parts.ROOT / "tests/cluster/machine").glob("test_*.py")
    )
    assert len(files) == 3
    assert [runs(f"tests/cluster/machine/{name}") for name in files] == [1, 1, 1]


@pytest.mark.parametrize("suite", ["tests/unit", "tests/process"])
def test_tests_for_an_accelerator_do_not_run(suite: str) -> None:
    assert runs(suite, "gpu") == runs(suite, "gpu", "slow") == runs(suite, "gpu", "alone") == 0


def test_a_failing_command_ends_the_run_with_its_status(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def part(name: str, *commands: str) -> test_parts.Part:
        return test_parts.Part(name=name, minutes=2, commands=commands)

    monkeypatch.setattr(
        test_parts,
        "PARTS",
        (
            part("first", "python -c 'print(1)'"),
            part("second", "python -c 'raise SystemExit(3)'", "python -c 'print(2)'"),
            part("third", "python -c 'print(3)'"),
        ),
    )
    monkeypatch.setattr(sys, "argv", ["test_parts"])
    assert test_parts.main() == 3
    lines = capfd.readouterr().out.splitlines()
    assert "=== part 1 of 3: first, usually 2 min; then second, third (4 min)" in lines
    assert "1" in lines
    assert "2" not in lines
    assert "3" not in lines
    assert any(line.endswith('repeat it with: make test PARTS="second"') for line in lines)
    assert lines[-1] == "=== minutes: first 0.0, second 0.0 (failed)"


def test_parts_can_be_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    parts = [
        test_parts.Part(name=name, minutes=1, commands=(f"python -c 'print(\"{name} ran\")'",))
        for name in ("one", "two")
    ]
    monkeypatch.setattr(test_parts, "PARTS", tuple(parts))
    monkeypatch.setattr(sys, "argv", ["test_parts", "two"])
    assert test_parts.main() == 0
    out = capfd.readouterr().out
    assert "two ran" in out
    assert "one ran" not in out


def test_a_part_that_must_be_named_is_left_out_otherwise(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    parts = [
        test_parts.Part(
            name=name,
            minutes=1,
            commands=(f"python -c 'print(\"{name} ran\")'",),
            named_only=name == "two",
        )
        for name in ("one", "two")
    ]
    monkeypatch.setattr(test_parts, "PARTS", tuple(parts))
    for arguments, ran in (([], "one"), (["two"], "two")):
        monkeypatch.setattr(sys, "argv", ["test_parts", *arguments])
        assert test_parts.main() == 0
        out = capfd.readouterr().out
        assert [line for line in out.splitlines() if line.endswith(" ran")] == [f"{ran} ran"]
