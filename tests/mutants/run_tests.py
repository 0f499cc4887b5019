"""A program of its own: run the tests that a request names, and write what became of each.

It imports nothing of this package, because it runs in the copy of the tree that has the fault.
"""

import json
import re
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

PASSED, FAILED, TIMED_OUT, BROKEN, SKIPPED = "passed", "failed", "timed out", "broken", "skipped"
ENGINES = "tests/process/engines/"
# What a test fails with when the code cannot even be loaded: this shows nothing about a promise.
_NOT_LOADED = ("ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError", "NameError")


def matches(node: str, test: str) -> bool:
    """Whether a collected test is the one named, one of its cases, or part of what is named."""
    return node == test or node.startswith((f"{test}[", f"{test}::"))


class Outcomes:
    """A plugin of pytest: keeps the tests wanted, records (outcome, message) of each."""

    def __init__(self, wanted: list[str], answer: Path) -> None:
        self.wanted = wanted
        self.answer = answer
        self.found: dict[str, tuple[str, str]] = {}

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        kept = [x for x in items if any(matches(x.nodeid, test) for test in self.wanted)]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept

    def pytest_sessionfinish(self) -> None:
        """Before pytest raises what the fault has left behind, such as sockets that are open."""
        self.answer.write_text(json.dumps(self.found), encoding="utf-8")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.found[report.nodeid] = (BROKEN, _last_line(str(report.longrepr)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        before, _ = self.found.get(report.nodeid, ("", ""))
        if report.failed and before not in {FAILED, TIMED_OUT}:
            self.found[report.nodeid] = _failure(report)
        elif report.skipped and not before:
            self.found[report.nodeid] = (SKIPPED, str(report.longrepr))
        elif report.when == "call" and report.passed:
            self.found[report.nodeid] = (PASSED, "")


def _failure(report: pytest.TestReport) -> tuple[str, str]:
    crash: Any = getattr(report.longrepr, "reprcrash", None)
    message = str(crash.message if crash else report.longrepr).strip()
    first = message.partition("\n")[0]
    if "from pytest-timeout" in first:
        return TIMED_OUT, first
    if report.when != "call" or first.startswith(_NOT_LOADED):
        return BROKEN, f"in {report.when}: {first}"
    return FAILED, first


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


def main() -> int:
    """Run what the request file (first argument) names; the answer goes to the second."""
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    outcomes = Outcomes(request["tests"], Path(sys.argv[2]))
    files = sorted({test.partition("::")[0] for test in request["tests"]})
    options = ["--quiet", "--no-header", "--tb=short", "-p", "no:cacheprovider"]
    options.append(f"--timeout={request['timeout']}")
    options += [f"--engine={engine}" for engine in optional_engines(request["tests"])]
    return int(pytest.main([*options, *files], plugins=[outcomes]))


def optional_engines(tests: list[str]) -> set[str]:
    """The engines that the suite of training engines has to be asked for, and the core's."""
    own = " ".join(test for test in tests if test.startswith(ENGINES))
    optional = {engine.name for engine in entry_points(group="rollcall.train_engines")}
    found = optional & set(re.split(r"[-\[\] ]", own))
    return found | {"fsdp2"} if found else set()


if __name__ == "__main__":
    sys.exit(main())
