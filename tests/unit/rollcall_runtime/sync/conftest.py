"""Processes that the tests of engines share, because torch takes seconds to start."""

from collections.abc import Iterator

import pytest

from tests.doubles import build as doubles
from tests.unit.rollcall_runtime.sync import real_device_cases
from tests.unit.rollcall_runtime.sync.engine_cases import CASES, Case
from tests.unit.rollcall_runtime.sync.faulty_members import FORK_SERVER
from tests.unit.rollcall_runtime.sync.member_processes import MemberProcess, MemberProcesses

ALL = [
    # The quick run has gloo alone: processes and libraries take seconds to start. The tests of an
    # engine share its processes, so they run one after the other.
    *(
        pytest.param(
            case,
            id=case.id,
            marks=[
                pytest.mark.xdist_group(f"sync-{case.id}"),
                *([] if case.engine == "gloo" else [pytest.mark.slow]),
            ],
        )
        for case in CASES
    ),
    *(
        pytest.param(case, id=f"{case.id}-real", marks=pytest.mark.gpu)
        for case in real_device_cases.CASES
    ),
]


@pytest.fixture(scope="package", params=ALL)
def processes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MemberProcesses]:
    """Where members of each engine come from."""
    case: Case = request.param
    if case in real_device_cases.CASES:
        real_device_cases.skip_without_device(case)
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


@pytest.fixture(scope="package")
def trio(processes: MemberProcesses) -> list[MemberProcess]:
    """A sender and two receivers that survive their tests."""
    return processes.group(2)
