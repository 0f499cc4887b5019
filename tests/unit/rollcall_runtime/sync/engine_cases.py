"""The cases of an engine that the conformance suite runs, and their members."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from tests.doubles import build as doubles
from tests.unit.rollcall_runtime.sync import real_devices
from tests.unit.rollcall_runtime.sync.faulty_members import FORK_SERVER
from tests.unit.rollcall_runtime.sync.member_processes import MemberProcess, MemberProcesses

# Keeps the suite short.
SHORT = {"operationTimeout": 2, "maxAbandoned": 3}


@dataclass(frozen=True, slots=True)
class Case:
    """An engine, its settings as in an RLJob, what its processes find in the environment, and
    the torch device type that it is to serve. FOLDER in a setting is one of the tests' own.
    `variant` distinguishes two cases of an engine; a `real` one needs the device.

    The last four say what the suite may expect of the engine. `selective`: its receivers can leave
    buckets out. `names_dead_sources`: its receivers read from other members, and name a dead one.
    `sender_waits`: its `publish` lasts until receivers have taken most of the bytes. `quick`: its
    processes start as fast as a test of `make test` must.
    """

    engine: str
    config: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    device: str = "cpu"
    variant: str = ""
    real: bool = False
    selective: bool = False
    names_dead_sources: bool = False
    sender_waits: bool = True
    quick: bool = False

    @property
    def id(self) -> str:
        """In the tests' names."""
        name = f"{self.engine}-{self.variant}" if self.variant else self.engine
        return f"{name}-real" if self.real else name


def members_of(
    *cases: Case, scope: Literal["module", "package"] = "module"
) -> tuple[Any, Any, Any]:
    """The fixtures `case`, `processes`, where members of its engine come from, and `trio`.

    Tests share them, because torch takes seconds to start.
    """

    @pytest.fixture(scope=scope, params=[_parameter(case) for case in cases])
    def case(request: pytest.FixtureRequest) -> Case:
        found: Case = request.param
        return found

    @pytest.fixture(scope=scope)
    def processes(
        case: Case, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[MemberProcesses]:
        if case.real:
            real_devices.skip_without(case.device)
        elif case.device != "cpu":
            doubles.build()
        folder = tmp_path_factory.mktemp("sync")
        config = {
            name: value.replace("FOLDER", str(folder)) if isinstance(value, str) else value
            for name, value in case.config.items()
        }
        with MemberProcesses(
            folder,
            engine=case.engine,
            config=config,
            environment=case.environment,
            device=case.device,
            start=FORK_SERVER,
        ) as made:
            yield made

    @pytest.fixture(scope=scope)
    def trio(processes: MemberProcesses) -> list[MemberProcess]:
        """A sender and two receivers that survive their tests."""
        return processes.group(2)

    return case, processes, trio


def _parameter(case: Case) -> Any:
    if case.real:
        return pytest.param(case, id=case.id, marks=pytest.mark.gpu)
    # The tests of an engine share its processes, so they run one after the other.
    marks = [pytest.mark.xdist_group(f"sync-{case.id}")]
    marks += [] if case.quick else [pytest.mark.slow]
    return pytest.param(case, id=case.id, marks=marks)
