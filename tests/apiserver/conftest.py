"""One control plane for the run, one operator for each file that asks for it."""

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hack.cluster import go_build
from tests.apiserver.cluster import Cluster, StartCluster, running_cluster
from tests.apiserver.cluster_user import ClusterUser, open_user
from tests.apiserver.local_cluster import running_local_cluster
from tests.apiserver.operator_process import OperatorProcess

_NUMBERS = itertools.count(1)
_PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl", "helm")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--api-server",
        choices=("real", "local"),
        default="real",
        help="the API server and controllers of Kubernetes, or those of `rollcall local`",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "kubernetes(why): needs what `rollcall local` has not")


def is_local(config: pytest.Config) -> bool:
    """False, too, where pytest was started for more than this folder, without the option."""
    return bool(config.getoption("--api-server", "real") == "local")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        mark = item.get_closest_marker("kubernetes")
        if mark is not None and is_local(config):
            item.add_marker(pytest.mark.skip(reason=f"Kubernetes alone has {mark.args[0]}"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what the tests need before the first one: from nothing it takes many minutes."""
    here = Path(__file__).parent
    if not session.config.option.collectonly and any(
        here in item.path.parents for item in session.items
    ):
        go_build.programs(_PROGRAMS)


@pytest.fixture(scope="session")
def start_cluster(pytestconfig: pytest.Config) -> StartCluster:
    """Starts a cluster as the option says."""
    return running_local_cluster if is_local(pytestconfig) else running_cluster


@pytest.fixture(scope="session")
def cluster(start_cluster: StartCluster) -> Iterator[Cluster]:
    """Real etcd, API server and controller-manager, with the chart's definitions and rights."""
    with start_cluster() as running:
        yield running


@pytest.fixture(scope="module")
def operator(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """An operator that serves the whole cluster; must be healthy to the end."""
    log = tmp_path_factory.mktemp("operator") / "log"
    flags = ("--lease-duration", "6")
    with OperatorProcess(kubeconfig=cluster.operator, log=log, flags=flags) as running:
        running.wait_until_watching()
        yield running
        running.assert_healthy()
        assert running.terminate() == 0  # and gives its Lease to the next file's


@pytest.fixture(scope="module")
def direct_operator(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """One that calls coordinators at their addresses; must be healthy to the end."""
    flags = ("--no-leader-elect", "--reach", "direct")
    log = tmp_path_factory.mktemp("operator") / "log"
    with OperatorProcess(kubeconfig=cluster.operator, log=log, flags=flags) as running:
        running.wait_until_watching()
        yield running
        running.assert_healthy()


@pytest.fixture
async def user(cluster: Cluster) -> AsyncIterator[ClusterUser]:
    """A namespace of one's own."""
    async with open_user(cluster.admin, namespace=f"test-{next(_NUMBERS)}") as made:
        yield made


@pytest.fixture
def log_folder(tmp_path: Path) -> Path:
    """Where a test's own operators log."""
    return tmp_path


@pytest.fixture
def start_operator(
    cluster: Cluster, user: ClusterUser, log_folder: Path
) -> Iterator[Callable[[], OperatorProcess]]:
    """Starts an operator of the test's own namespace, which serves then; all end with the test."""
    flags = ("--no-leader-elect", "--namespace", user.namespace, "--reach", "direct")
    with ExitStack() as stack:

        def start() -> OperatorProcess:
            log = log_folder / f"operator-{next(_NUMBERS)}"
            process = OperatorProcess(kubeconfig=cluster.operator, log=log, flags=flags)
            return stack.enter_context(process).wait_until_watching()

        yield start
