"""A real control plane whose nodes and pods are simulated by kwok: pods become ready at once.

Kubelet and containers are what is simulated; etcd, API server, controller-manager and scheduler are
the real ones. Pods get addresses of 198.18.0.0/15 (for benchmarks: RFC 2544), which are this
machine's own for as long as the cluster lives, so that a process here can stand in for what they
would run. Addresses of 127.0.0.0/8 would not do: the API server refuses them in EndpointSlices, and
the controllers try again and again. https://kwok.sigs.k8s.io/docs/user/stages-configuration/
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
from typing import TYPE_CHECKING

from hack.cluster import go_build
from rollcall_operator.kube.resources import NODES
from tests.apiserver.cluster import Cluster, running_cluster
from tests.apiserver.cluster_user import eventually, open_user
from tests.apiserver.kubelet import is_ready

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hack.cluster.control_plane import ControlPlane
    from tests.apiserver.cluster_user import ClusterUser

NODES_COUNT = 20
_STAGES = (
    "node/fast/node-initialize.yaml",
    "pod/fast/pod-ready.yaml",
    "pod/fast/pod-delete.yaml",
)
_ADDRESSES = "198.18.0.0/15"
_FIRST_ADDRESS = "198.18.0.1/15"
_LOCAL_ROUTE = ("local", _ADDRESSES, "dev", "lo")
_PARALLEL = 16
_READY_SECONDS = 60.0


@contextlib.contextmanager
def simulated_cluster() -> Iterator[Cluster]:
    """With Rollcall's definitions and rights, and without its operator; gone at the end."""
    with _addresses_of_this_machine(), running_cluster() as cluster:
        _start_scheduler(cluster.control)
        _start_kwok(cluster.control)
        asyncio.run(_make_nodes(cluster))
        yield cluster


@contextlib.contextmanager
def _addresses_of_this_machine() -> Iterator[None]:
    """Needs the right to add a route; one that a killed run has left is taken over."""
    subprocess.run(["ip", "route", "replace", *_LOCAL_ROUTE], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "route", "del", *_LOCAL_ROUTE], check=True)


def _start_scheduler(control: ControlPlane) -> None:
    configuration = control.folder / "scheduler.json"
    configuration.write_text(
        json.dumps(
            {
                "apiVersion": "kubescheduler.config.k8s.io/v1",
                "kind": "KubeSchedulerConfiguration",
                "leaderElection": {"leaderElect": False},
                "clientConnection": {
                    "kubeconfig": str(control.kubeconfig),
                    "qps": 1000,
                    "burst": 2000,
                },
            }
        )
    )
    control.start_program("kube-scheduler", f"--config={configuration}", "--secure-port=0")


def _start_kwok(control: ControlPlane) -> None:
    folder = go_build.module_folder("kwok") / "kustomize" / "stage"
    options = {
        "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
        "kind": "KwokConfiguration",
        "options": {
            "podPlayStageParallelism": _PARALLEL,
            "nodePlayStageParallelism": _PARALLEL,
        },
    }
    texts = [json.dumps(options), *((folder / stage).read_text() for stage in _STAGES)]
    configuration = control.folder / "kwok.yaml"
    configuration.write_text("\n---\n".join(texts))
    control.start_program(
        "kwok",
        f"--kubeconfig={control.kubeconfig}",
        f"--config={configuration}",
        "--manage-all-nodes=true",
        f"--cidr={_FIRST_ADDRESS}",
        "--node-ip=127.0.0.1",
        "--node-lease-duration-seconds=40",
        "--server-address=127.0.0.1:0",
    )


async def _make_nodes(cluster: Cluster) -> None:
    async with open_user(cluster.admin, namespace="nodes") as user:
        for number in range(NODES_COUNT):
            name = f"node-{number}"
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
            await user.client.create(NODES, node)
        await eventually(
            lambda: _all_ready(user), "all simulated nodes are ready", seconds=_READY_SECONDS
        )


async def _all_ready(user: ClusterUser) -> bool:
    nodes = await user.client.list(NODES, namespace=None)
    return all(map(is_ready, nodes))
