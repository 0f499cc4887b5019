"""The API server goes away and comes back; resource definitions are late."""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from rollcall_operator.kube.resources import RL_JOBS
from tests.apiserver.cluster import Cluster, StartCluster
from tests.apiserver.cluster_user import (
    USER,
    ClusterUser,
    all_children,
    eventually,
    example,
    open_user,
)
from tests.apiserver.operator_process import OperatorProcess

pytestmark = pytest.mark.slow

FULL_SECONDS, MOST_REQUESTS = 10.0, 100


@pytest.fixture(scope="module")
def own_cluster(start_cluster: StartCluster) -> object:
    with start_cluster() as running:
        yield running


async def test_the_operator_outlives_an_outage_shorter_than_its_lease(
    own_cluster: Cluster, log_folder: Path
) -> None:
    async with open_user(own_cluster.admin, namespace="outage") as user:
        log = log_folder / "log"
        flags = ("--lease-duration=120",)  # a busy machine takes long to start the API server
        with OperatorProcess(kubeconfig=own_cluster.operator, log=log, flags=flags) as operator:
            operator.wait_until_watching()
            await user.apply(example("before"))
            await all_children(user, "before")
            own_cluster.control.stop_apiserver()
            await asyncio.sleep(1.0)
            own_cluster.control.start_apiserver()
            await user.apply(example("after"))
            await all_children(user, "after")
            assert operator.process.poll() is None, operator.log.read_text()
            assert operator.terminate() == 0


@pytest.mark.kubernetes("etcd")
async def test_what_a_full_etcd_refuses_is_made_once_it_has_room(
    own_cluster: Cluster, log_folder: Path
) -> None:
    async with open_user(own_cluster.admin, namespace="full") as user:
        flags = ("--lease-duration=120",)  # a Lease is a write, too
        with OperatorProcess(
            kubeconfig=own_cluster.operator, log=log_folder / "log", flags=flags
        ) as operator:
            operator.wait_until_watching()
            await user.apply(example("before"))
            made = await all_children(user, "before")
            await set_full(own_cluster, "ACTIVATE")
            began = len(own_cluster.control.requests(user=USER))
            user.kubectl("delete", "service", "before-trainer")  # etcd still takes that
            operator.wait_for_log("database space exceeded")
            await asyncio.sleep(FULL_SECONDS)
            assert len(own_cluster.control.requests(user=USER)) - began < MOST_REQUESTS
            assert "Service/before-trainer" not in await user.children("before")
            await set_full(own_cluster, "DEACTIVATE")
            assert (await all_children(user, "before")).keys() == made.keys()
            assert operator.process.poll() is None, operator.log.read_text()


async def set_full(cluster: Cluster, action: str) -> None:
    """Raise or end the alarm by which etcd refuses what takes space.

    https://etcd.io/docs/v3.6/op-guide/maintenance/#space-quota
    """
    alarm = {"action": action, "memberID": "0", "alarm": "NOSPACE"}
    async with (
        aiohttp.ClientSession(cluster.control.etcd) as session,
        session.post("/v3/maintenance/alarm", json=alarm) as answer,
    ):
        assert answer.status == 200, await answer.text()


@pytest.mark.kubernetes("definitions of kinds that can come and go")
async def test_it_waits_for_definitions_that_come_late(
    own_cluster: Cluster, log_folder: Path
) -> None:
    async with open_user(own_cluster.admin, namespace="late") as user:
        user.kubectl("delete", "crd", "rljobs.rollcall.dev", "rolloutpools.rollcall.dev")
        log = log_folder / "log"
        flags = ("--no-leader-elect",)
        with OperatorProcess(kubeconfig=own_cluster.operator, log=log, flags=flags) as operator:
            operator.wait_for_log("CRD rljobs.rollcall.dev is not installed; apply crds/")
            status, text = operator.fetch("/readyz")
            assert (status, "rljobs.rollcall.dev" in text) == (503, True)
            assert operator.fetch("/healthz")[0] == 200
            user.kubectl("apply", "-f", "crds/")
            operator.wait_until_watching()
            await serve(user)
            assert operator.fetch("/readyz")[0] == 200


async def serve(user: ClusterUser) -> None:
    async def applied() -> bool:
        await user.apply(example())
        return await user.find(RL_JOBS, "reverse") is not None

    await eventually(applied, "the job is taken")
    await all_children(user)
