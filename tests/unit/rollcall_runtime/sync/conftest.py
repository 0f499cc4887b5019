"""Processes that the tests of engines share, because torch takes seconds to start."""

from collections.abc import Iterator

import pytest

from rollcall_runtime.bench.world import Remote, World
from tests.doubles import build as doubles
from tests.unit.rollcall_runtime.sync.cases import CASES, Case
from tests.unit.rollcall_runtime.sync.faults import NURSERY


@pytest.fixture(scope="package", params=CASES, ids=lambda case: case.engine)
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """Where members of each engine come from."""
    case: Case = request.param
    if case.device != "cpu":
        doubles.build()
    with World(
        tmp_path_factory.mktemp("sync"),
        engine=case.engine,
        config=case.config,
        environment=case.environment,
        device=case.device,
        start=NURSERY,
    ) as made:
        yield made


@pytest.fixture(scope="package")
def trio(world: World) -> list[Remote]:
    """A sender and two receivers that survive their tests."""
    return world.group(2)
