"""Where the scenarios run: on this machine, or with `--on cluster` on the local cluster (kind)."""

import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

import pytest
import pytest_asyncio

from rollcall_cli.cluster import open_cluster
from rollcall_local.local_cluster import local_cluster
from rollcall_local.state_folder import StateFolder
from rollcall_operator.kube.client import KubeClient
from tests.scenarios.job import Need, Object, ScenarioJob


class Apply(Protocol):
    """Applies a job after the objects that it needs."""

    async def __call__(self, body: Object, *needs: Need) -> ScenarioJob: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--on", choices=["machine", "cluster"], default="machine", help=__doc__)


def pytest_sessionstart(session: pytest.Session) -> None:
    """A new cluster takes longer than a test may."""
    if session.config.option.on == "cluster":
        from hack.cluster import installation  # noqa: PLC0415 - it has prerequisites

        installation.ensure()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One event loop: what stands in for a cluster works in it."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[KubeClient]:
    """One place for all scenarios of a process."""
    async with contextlib.AsyncExitStack() as stack:
        if request.config.option.on == "cluster":
            from hack.cluster import lifecycle  # noqa: PLC0415 - it has prerequisites

            kubeconfig = str(lifecycle.kubeconfig())
        else:
            folder = StateFolder(tmp_path_factory.mktemp("machine") / "scenarios")
            folder.hold()
            await stack.enter_async_context(
                local_cluster(
                    folder,
                    namespaces={"default"},
                    images={},
                    imported_with={"OMP_NUM_THREADS": "1"},
                )
            )
            kubeconfig = str(folder.kubeconfig)
        opened, _ = await stack.enter_async_context(open_cluster(kubeconfig=kubeconfig))
        yield opened


@pytest.fixture
def job_name(request: pytest.FixtureRequest) -> str:
    """A name of the test's own."""
    text = request.node.originalname.removeprefix("test_").replace("_", "-")
    return re.sub("[^a-z0-9-]", "", text)[:32].strip("-")


@pytest_asyncio.fixture(loop_scope="session")
async def applied(client: KubeClient) -> AsyncIterator[Apply]:
    """What is applied is deleted after the test."""
    jobs: list[ScenarioJob] = []

    async def apply(body: Object, *needs: Need) -> ScenarioJob:
        job = ScenarioJob(client, "default", body, needs)
        jobs.append(job)
        await job.delete()  # a run that was cut off left it
        await job.apply()
        return job

    yield apply
    for job in jobs:
        await job.delete()
