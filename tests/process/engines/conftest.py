"""Which engines and meshes the tests of the suite run on.

`--engine NAME` (as often as wanted) names engines, plug-ins and those of other distributions too;
without it the core's is tested. `--cpu-stand-ins NAME` has an engine run on a CPU that is made for
accelerators (see `stand_ins`). On a machine with accelerators each rank has one of them, and
the meshes that need more are skipped.

A test that takes `engine` runs on each of these engines and on each mesh of its mark `meshes`. One
of two engines runs if both are tested, or one of them and the core's.
"""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from rollcall_protocol.train_settings import BUILT_IN
from tests.process.engines import meshes
from tests.process.engines.engine_on_ranks import EngineOnRanks, Model, Place
from tests.process.engines.limits import CORE
from tests.process.engines.rank_processes import RankPool
from tests.process.engines.stand_ins import has_stand_in
from tests.process.engines.tiny_models import Architecture, write_tiny_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.process.engines.meshes import Mesh

QUICK_WORLD = 2  # ranks; `make test` has these alone

UNTIED = frozenset({"llama"})  # the other models have one matrix for input and output tokens


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--engine", action="append", metavar="NAME", help="a training engine to test")
    parser.addoption("--cpu-stand-ins", metavar="NAME", help="what the engine needs on a CPU")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "meshes(*meshes): the meshes that a test runs on")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "engine" not in metafunc.fixturenames:
        return
    mark = metafunc.definition.get_closest_marker("meshes")
    chosen: tuple[Mesh, ...] = mark.args if mark else meshes.PAIRS
    named = metafunc.config.getoption("--engine", default=None)
    metafunc.parametrize(
        "engine",
        [
            pytest.param((name, mesh), id=f"{name}-{mesh.name}", marks=_marks(name, mesh, named))
            for name in named or sorted(BUILT_IN)
            for mesh in chosen
        ],
        indirect=True,
    )


def _marks(name: str, mesh: Mesh, named: list[str] | None) -> list[pytest.MarkDecorator]:
    """Tests of one engine share its ranks, so they run in one process, one after the other."""
    quick = named or (name == CORE and mesh.world == QUICK_WORLD)
    group = pytest.mark.xdist_group(f"engine-{name}")
    return [group] if quick else [group, pytest.mark.slow]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """One engine and one world after the other, so that ranks are started once.

    The tests of other folders, whose own `engine` may be anything, keep their places.
    """
    here = Path(__file__).parent
    tested = _tested(config)
    left_out = {item for item in items if here in item.path.parents and not _concerns(item, tested)}
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)
    places = [n for n, item in enumerate(items) if here in item.path.parents]
    for place, item in zip(
        places, sorted((items[n] for n in places), key=_engine_and_world), strict=True
    ):
        items[place] = item


def _tested(config: pytest.Config) -> frozenset[str]:
    """The engines of `--engine`; else the core's, and those whose cases an argument names."""
    named = config.getoption("--engine", default=None)
    if named:
        return frozenset(named)
    words = {word for argument in config.args for word in re.split(r"[-\[\]]", argument)}
    return frozenset({CORE, *BUILT_IN.keys() & words})


def _concerns(item: pytest.Item, tested: frozenset[str]) -> bool:
    """Whether a test is of engines that are tested, and of no other but the core's."""
    callspec = getattr(item, "callspec", None)
    values = callspec.params.values() if callspec else ()
    names = [value[0] if isinstance(value, tuple) else value for value in values]
    engines = {name for name in names if isinstance(name, str)} & {*BUILT_IN, *tested}
    return not engines or bool(engines & tested and engines <= {CORE, *tested})


def _engine_and_world(item: pytest.Item) -> tuple[str, int]:
    callspec = getattr(item, "callspec", None)
    name, mesh = callspec.params.get("engine", ("", meshes.ONE)) if callspec else ("", meshes.ONE)
    return name, mesh.world


@pytest.fixture(scope="session")
def rank_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    pool = RankPool(tmp_path_factory.mktemp("ranks"))
    yield pool
    pool.close()


@pytest.fixture
def place(request: pytest.FixtureRequest, rank_pool: RankPool) -> Iterator[Place]:
    """Gives the ranks of an engine's mesh; all are the test's own until it ends."""
    stand_in = request.config.getoption("--cpu-stand-ins", default=None)
    with ExitStack() as held:

        def find(name: str, mesh: Mesh) -> EngineOnRanks:
            devices = torch.accelerator.device_count()
            if 0 < devices < mesh.world:
                pytest.skip(f"{mesh.name} needs {mesh.world} devices, and {devices} are here")
            own = "" if devices else stand_in or (name if has_stand_in(name) else "")
            return EngineOnRanks(
                name, mesh, held.enter_context(rank_pool.ranks(name, mesh.world, own))
            )

        yield find


@pytest.fixture
def engine(request: pytest.FixtureRequest, place: Place) -> EngineOnRanks:
    """Not opened yet: the test says with which model and settings."""
    name, mesh = request.param
    return place(name, mesh)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The directory of a tiny model of an architecture; written once a session."""
    made: dict[Architecture, Path] = {}

    def directory(name: Architecture) -> Path:
        if name not in made:
            folder = tmp_path_factory.mktemp("models") / name
            made[name] = write_tiny_model(folder, name, tied=name not in UNTIED)
        return made[name]

    return directory
