"""One process for all tests, from which their workers are forked."""

from collections.abc import Iterator

import pytest

from tests.process import pods
from tests.process.worker_processes import WorkerForkServer


@pytest.fixture(scope="session")
def worker_fork_server() -> Iterator[WorkerForkServer]:
    """Starts with the first test that needs it."""
    with WorkerForkServer(pods.AT_IMPORT) as server:
        yield server


@pytest.fixture(autouse=True)
def forked_workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has pods fork their workers, unless the test is marked `new_interpreters`."""
    if "new_interpreters" not in request.keywords:
        server = request.getfixturevalue("worker_fork_server")
        monkeypatch.setattr(pods, "FORK_SERVER", server)
