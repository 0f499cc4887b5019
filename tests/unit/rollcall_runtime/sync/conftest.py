"""Processes that the tests of engines share, because torch takes seconds to start."""

from collections.abc import Iterator

import pytest

from tests.unit.rollcall_runtime.sync.world import Remote, World


@pytest.fixture(scope="package")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Where members come from."""
    with World(tmp_path_factory.mktemp("sync")) as made:
        yield made


@pytest.fixture(scope="package")
def trio(world: World) -> list[Remote]:
    """A sender and two receivers that survive their tests."""
    return world.group(2)
