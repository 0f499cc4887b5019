"""One container runtime for the local jobs of all tests, so one event loop."""

import inspect
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.process.runtimes import shared_runtimes


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have tests with local jobs run in the event loop of the runtime."""
    for item in items:
        if item.path.parent == Path(__file__).parent and inspect.iscoroutinefunction(
            getattr(item, "function", None)
        ):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def one_runtime(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[None]:
    """It imports torch once."""
    async with shared_runtimes(tmp_path_factory.mktemp("runtimes")):
        yield


@pytest.fixture(autouse=True)
def forked_workers(request: pytest.FixtureRequest) -> None:
    """Starts the runtime with the first test whose event loop is that of all."""
    mark = request.node.get_closest_marker("asyncio")
    if mark is not None and mark.kwargs.get("loop_scope") == "session":
        request.getfixturevalue("one_runtime")
