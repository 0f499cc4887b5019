"""A bare control plane with Rollcall installed by its chart, all but the operator's pod."""

import asyncio
import contextlib
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hack.cluster import go_build
from hack.cluster.control_plane import ControlPlane
from rollcall_operator.kube.resources import RL_JOBS, ROLLOUT_POOLS
from tests.apiserver.cluster_user import (
    ACCOUNT,
    ROOT,
    SYSTEM,
    USER,
    eventually,
    open_user,
    service_account_kubeconfig,
)

KUBERNETES = "1.36.0"
_LATER = {"Deployment", "Service"}  # the operator runs here as a process


@dataclass(frozen=True, slots=True)
class Cluster:
    """`admin` and `operator` are kubeconfigs; the second has the chart's rights and no more."""

    control: ControlPlane
    admin: Path
    operator: Path

    def writes(self) -> list[dict[str, Any]]:
        """Audit events of the operator's writes."""
        return self.control.writes(user=USER)


StartCluster = Callable[[], contextlib.AbstractContextManager[Cluster]]


@contextlib.contextmanager
def running_cluster() -> Iterator[Cluster]:
    """Start it, install the chart's definitions and rights, and end it."""
    with ControlPlane() as control:
        operator = control.folder / "operator-kubeconfig"
        operator.touch(mode=0o600)
        operator.write_text(asyncio.run(_install(control)))
        yield Cluster(control=control, admin=control.kubeconfig, operator=operator)


def rendered(*flags: str, release: str = ACCOUNT) -> list[dict[str, Any]]:
    """The chart's objects, as Helm would install them."""
    helm = go_build.programs(["helm"])["helm"]
    done = subprocess.run(
        [
            helm,
            "template",
            release,
            str(ROOT / "charts" / "rollcall-operator"),
            "--namespace",
            SYSTEM,
            "--kube-version",
            KUBERNETES,
            *flags,
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [body for body in yaml.safe_load_all(done.stdout) if body]


async def _install(control: ControlPlane) -> str:
    """Returns the kubeconfig of the operator's service account."""
    async with open_user(control.kubeconfig, namespace="install") as user:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}}
        for body in (namespace, *rendered()):
            if body["kind"] not in _LATER:
                await user.apply(body)
        for resource in (RL_JOBS, ROLLOUT_POOLS):
            await eventually(
                lambda resource=resource: user.listed(resource),  # type: ignore[misc]
                f"{resource.plural} are served",
            )
        return service_account_kubeconfig(
            user, server=control.server, certificate=control.certificate
        )
