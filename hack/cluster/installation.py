"""Installs what a job needs: the cluster, the images and the operator's chart."""

import ipaddress
import json
from pathlib import Path

from hack.cluster import cache, go_build, images, lifecycle, progress
from hack.cluster.examples import OPERATOR_IMAGE, PREFIX, ROOT, TAG, WORKER_IMAGE
from hack.cluster.kubectl import Kubectl
from hack.cluster.network_policies import daemon_set
from hack.cluster.progress import Step
from hack.cluster.subprocesses import run

EXISTING = lifecycle.uses_existing()
RELEASE = "rollcall-operator"
SYSTEM_NAMESPACE = "rollcall-system"
INSTALL = Step("installing the operator with its chart", 10)


def steps() -> list[Step]:
    """The steps that `ensure` takes, for the display of progress."""
    own = [] if EXISTING else [*lifecycle.steps(), *images.steps(prefix=PREFIX, tag=TAG)]
    return [*own, *go_build.steps(["kubectl", "helm"]), INSTALL]


def ensure(namespace: str = "default") -> Kubectl:
    """Make the cluster, the images and the operator, as far as they are missing; idempotent.

    Raises:
        ClusterError: one of them could not be made.
    """
    with progress.plan(steps()):
        lifecycle.up()
        if not EXISTING:
            images.build(images.DEFAULT, prefix=PREFIX, tag=TAG)
            images.load([OPERATOR_IMAGE, WORKER_IMAGE])
        kubectl = connect(namespace)
        if not EXISTING:
            daemon_set.install(kubectl)
        lifecycle.program("helm")  # built before the step, whose usual time it would exceed
        log = cache.log("helm-upgrade")
        with progress.step(INSTALL, log=log):
            install(kubectl, log=log)
    return kubectl


def ensure_image(name: str, *, most: int | None = None) -> list[str]:
    """Build an image beyond the default ones and put it into nodes, `most` at most.

    On a cluster of one's own it is taken to be in the registry already.

    Returns:
        The nodes that have it; none on a cluster of one's own, where all can pull it.

    Raises:
        ClusterError: it could not be made.
    """
    if EXISTING:
        return []
    # Tests that run side by side ask for it at the same time.
    with (
        cache.lock(f"image-{name}"),
        progress.plan(images.steps([name], prefix=PREFIX, tag=TAG)),
    ):
        return images.load(images.build([name], prefix=PREFIX, tag=TAG), most=most)


def connect(namespace: str = "default") -> Kubectl:
    """A Kubectl for the cluster that runs already; nothing is started."""
    binary, kubeconfig = lifecycle.program("kubectl"), lifecycle.kubeconfig()
    return Kubectl(binary=str(binary), kubeconfig=str(kubeconfig), namespace=namespace)


def install(kubectl: Kubectl, *, log: Path | None = None) -> None:
    """Install or upgrade the chart, with the image that was loaded, and wait for it."""
    # The image's id makes a rebuilt image of the same name a new rollout of the operator.
    built = TAG if EXISTING else images.identity(OPERATOR_IMAGE)
    _helm(
        *("upgrade", "--install", RELEASE, str(ROOT / "charts" / "rollcall-operator")),
        f"--set=image.repository={PREFIX}/operator",
        f"--set=image.tag={TAG}",
        "--set=image.pullPolicy=IfNotPresent",
        f"--set-string=podAnnotations.image={built}",
        f"--set-json=jobNetworkPolicies.monitoring={json.dumps(_node_addresses(kubectl))}",
        *("--create-namespace", "--wait", "--timeout=180s"),
        log=log,
    )
    kubectl.run(
        "wait",
        "--for=condition=Established",
        "crd/rljobs.rollcall.dev",
        "crd/rolloutpools.rollcall.dev",
        "--timeout=60s",
    )


def _node_addresses(kubectl: Kubectl) -> list[dict[str, object]]:
    """The nodes as peers of a NetworkPolicy: metrics are read through the API server's proxy."""
    addresses = (
        found["address"]
        for node in kubectl.items("nodes")
        for found in node["status"]["addresses"]
        if found["type"] == "InternalIP"
    )
    return [{"ipBlock": {"cidr": str(ipaddress.ip_network(a))}} for a in addresses]


def uninstall() -> None:
    """Uninstall the chart and wait until its pods are gone. The definitions and jobs stay."""
    _helm("uninstall", RELEASE, "--wait", "--timeout=120s")


def _helm(*arguments: str, log: Path | None = None) -> None:
    place = (f"--kubeconfig={lifecycle.kubeconfig()}", f"--namespace={SYSTEM_NAMESPACE}")
    run([lifecycle.program("helm"), *arguments, *place], timeout_s=240, log=log)
