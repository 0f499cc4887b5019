"""Each test runs in exactly one part, whatever its marks; the gate has those without a mark."""

import itertools
import shlex

import pytest
from _pytest.mark.expression import Expression

from hack.test_parts import changes
from hack.test_parts.parts import NAMES, PARTS

SUITES = (
    *("tests/unit", "tests/process", "tests/process/engines", "tests/plugins"),
    *("tests/apiserver", "tests/cluster/jobs"),
)


def runs(path: str, *marks: str) -> list[str]:
    """The parts that run a test of this folder or file with these marks."""

    def has(name: str, /, **_: object) -> bool:
        return name in marks

    found = []
    commands = [(part.name, command) for part in PARTS for command in part.commands]
    for part, command in commands:
        program, *words = shlex.split(command)
        ignored = {words[n + 1] for n, word in enumerate(words) if word == "--ignore"}
        named = [word for word in words if word.startswith("tests/") and word not in ignored]
        expression = words[words.index("-m") + 1] if "-m" in words else "not never"
        inside = any(path == name or path.startswith(f"{name}/") for name in named)
        if (
            program == "pytest"
            and inside
            and path not in ignored
            and "--engine" not in words  # engines that the suite does not have otherwise
            and Expression.compile(expression).evaluate(has)
        ):
            found.append(part)
    return found


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize(
    "marks",
    [marks for count in range(3) for marks in itertools.combinations(("slow", "alone"), count)],
)
def test_a_test_runs_once(suite: str, marks: tuple[str, ...]) -> None:
    assert len(runs(suite, *marks)) == 1


@pytest.mark.parametrize("suite", SUITES)
def test_the_gate_has_the_tests_without_a_mark(suite: str) -> None:
    gate = {part.name for part in PARTS if part.gate}
    assert set(runs(suite)) <= gate
    assert not gate & {*runs(suite, "slow"), *runs(suite, "alone"), *runs(suite, "slow", "alone")}


@pytest.mark.parametrize("mark", ["every_engine", "vllm", "vllm_soak"])
@pytest.mark.parametrize("alone", [(), ("alone",)])
def test_a_job_with_an_image_of_its_own_has_a_part_of_its_own(
    mark: str, alone: tuple[str, ...]
) -> None:
    (part,) = runs("tests/cluster/jobs", "slow", mark, *alone)
    assert part not in runs("tests/cluster/jobs", "slow")


def test_the_tests_of_a_real_prometheus_have_a_part_of_their_own() -> None:
    assert runs("tests/apiserver", "monitoring") == ["monitoring"]


def test_each_test_of_the_local_cluster_itself_runs_in_one_part() -> None:
    files = sorted((changes.ROOT / "tests/cluster/machine").glob("test_*.py"))
    assert len(files) == 4
    for file in files:
        assert len(runs(str(file.relative_to(changes.ROOT)), "slow")) == 1


@pytest.mark.parametrize("suite", ["tests/unit", "tests/process", "tests/process/engines"])
def test_tests_for_an_accelerator_do_not_run(suite: str) -> None:
    for marks in ((), ("slow",), ("alone",)):
        assert runs(suite, "gpu", *marks) == []


def test_parts_have_names_of_their_own() -> None:
    assert len(set(NAMES)) == len(NAMES)
