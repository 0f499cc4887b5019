"""Options for all tests: which may run side by side, and what each costs.

`pytest -n 2 --dist loadgroup` runs tests side by side. Those of a file that share a fixture stay in
one process, as do those that a mark `xdist_group` puts together.

`pytest --durations-cpu N` lists the N slowest tests by wall time, with the CPU time that each used.
CPU time is that of the test's process and of all its descendants. A test with far more wall than
CPU time waits for something: a sleep, a time-out, another process that waits itself.

With the variable ROLLCALL_TEST_RECORD a line of JSON with how many tests passed, failed and were
skipped, and why, is appended to that file.
"""

import contextlib
import json
import os
from collections import Counter, defaultdict
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from _pytest.nodeid import coerce_node_id

_TICKS = os.sysconf("SC_CLK_TCK")
_CPU = "cpu_seconds"
_RECORD = "ROLLCALL_TEST_RECORD"
_WORKERS_END_SECONDS = 120


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--durations-cpu",
        type=int,
        default=0,
        metavar="N",
        help="list the N slowest tests by wall time, with their CPU time (0: none)",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.option.durations_cpu:
        config.pluginmanager.register(CpuDurations(config.option.durations_cpu))
    with contextlib.suppress(ImportError):  # vLLM's environment has no pytest-xdist
        from xdist.workermanage import (  # type: ignore[import-untyped]  # noqa: PLC0415
            NodeManager,
        )

        # xdist leaves behind workers that end later, and pytest fails for what is left behind.
        NodeManager.EXIT_TIMEOUT = _WORKERS_END_SECONDS
    # Tests that run pytest themselves do not record what those did.
    record = os.environ.pop(_RECORD, None)
    if record and not hasattr(config, "workerinput"):
        config.pluginmanager.register(OutcomeRecord(Path(record)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Without halves of surrogate pairs, which end the worker of pytest-xdist that sends them."""
    report = yield
    report.sections = [
        (title, text.encode(errors="backslashreplace").decode()) for title, text in report.sections
    ]
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around pytest-xdist, which reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    for item in items:
        if _shares_a_fixture(item) and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(item.location[0]))
    yield
    for item in items:
        grouped = getattr(item, "_nodeid", item.nodeid)
        if grouped != item.nodeid:
            # pytest-xdist 3.8 appends the group to what pytest 9.2 no longer reads.
            setattr(item, "_id", coerce_node_id(grouped))  # noqa: B010 - private


def _shares_a_fixture(item: pytest.Item) -> bool:
    definitions = getattr(item, "_fixtureinfo").name2fixturedefs.values()  # noqa: B009 - private
    return any(found.scope in {"module", "package"} for each in definitions for found in each)


@dataclass(slots=True)
class Duration:
    """Seconds of one test, set-up and teardown included."""

    wall: float = 0.0
    cpu: float = 0.0


@dataclass(slots=True, eq=False)  # pytest wants plugins to be hashable
class CpuDurations:
    """The plugin; with pytest-xdist it measures in the workers and prints in the controller."""

    count: int
    before: float = 0.0
    tests: defaultdict[str, Duration] = field(default_factory=lambda: defaultdict(Duration))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = cpu_seconds()
        report.user_properties = [*report.user_properties, (_CPU, now - self.before)]
        self.before = now
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self.before = cpu_seconds()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        duration = self.tests[report.nodeid]
        duration.wall += report.duration
        duration.cpu += sum(float(str(v)) for name, v in report.user_properties if name == _CPU)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        total = Duration(
            sum(test.wall for test in self.tests.values()),
            sum(test.cpu for test in self.tests.values()),
        )
        terminalreporter.section(f"{self.count} slowest tests by wall time")
        terminalreporter.line("wall (s)  CPU (s)  test")
        slowest = sorted(self.tests.items(), key=lambda item: item[1].wall, reverse=True)
        for name, test in slowest[: self.count]:
            terminalreporter.line(f"{test.wall:8.2f} {test.cpu:8.2f}  {name}")
        terminalreporter.line(f"{total.wall:8.2f} {total.cpu:8.2f}  all {len(self.tests)} tests")


@dataclass(slots=True, eq=False)
class OutcomeRecord:
    """The plugin that keeps what became of the tests; for `hack.test_parts`."""

    file: Path

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        found = terminalreporter.stats
        skipped = Counter(_reason(report) for report in found.get("skipped", []))
        counts = {
            "passed": len(found.get("passed", [])),
            "failed": len(found.get("failed", [])) + len(found.get("error", [])),
            "skipped": skipped,
        }
        with self.file.open("a", encoding="utf-8") as record:
            record.write(json.dumps(counts) + "\n")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    where = report.longrepr
    text = where[2] if isinstance(where, tuple) else str(where)
    return text.removeprefix("Skipped: ")


def cpu_seconds() -> float:
    """CPU time of this process and its descendants so far.

    Counts children that have ended and were waited for. One whose parent ended before it is not
    found any more.
    """
    parents: defaultdict[int, list[int]] = defaultdict(list)
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        pid = int(path.parent.name)
        parents[int(fields[1])].append(pid)
        ticks[pid] = sum(int(value) for value in fields[11:15])  # own and waited-for children's
    total, pending = 0, [os.getpid()]
    while pending:
        pid = pending.pop()
        total += ticks.get(pid, 0)
        pending += parents[pid]
    return total / _TICKS
