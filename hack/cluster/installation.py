"""Installs what a job needs: the cluster, the images and the operator's chart."""

from pathlib import Path

from hack.cluster import cache, go_build, images, lifecycle, progress
from hack.cluster.kubectl import OPERATOR_IMAGE, PREFIX, ROOT, TAG, WORKER_IMAGE, Kubectl
from hack.cluster.progress import Step
from hack.cluster.subprocesses import run

EXISTING = lifecycle.uses_existing()
RELEASE = "rollcall-operator"
SYSTEM_NAMESPACE = "rollcall-system"
INSTALL = Step("installing the operator with its chart", 10)


def steps() -> list[Step]:
    """What `ensure` shows."""
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
        helm = lifecycle.program("helm")
        log = cache.log("helm-upgrade")
        with progress.step(INSTALL, log=log):
            install(kubectl, helm=helm, log=log)
    return kubectl


def connect(namespace: str = "default") -> Kubectl:
    """The running cluster."""
    binary, kubeconfig = lifecycle.program("kubectl"), lifecycle.kubeconfig()
    return Kubectl(binary=str(binary), kubeconfig=str(kubeconfig), namespace=namespace)


def install(kubectl: Kubectl, *, helm: Path, log: Path) -> None:
    """Install or upgrade the chart, with the image that was loaded, and wait for it."""
    # The image's id makes a rebuilt image of the same name a new rollout of the operator.
    built = TAG if EXISTING else images.identity(OPERATOR_IMAGE)
    run(
        [
            helm,
            "upgrade",
            "--install",
            RELEASE,
            ROOT / "charts" / "rollcall-operator",
            f"--kubeconfig={lifecycle.kubeconfig()}",
            f"--namespace={SYSTEM_NAMESPACE}",
            "--create-namespace",
            f"--set=image.repository={PREFIX}/operator",
            f"--set=image.tag={TAG}",
            "--set=image.pullPolicy=IfNotPresent",
            f"--set-string=podAnnotations.image={built}",
            "--wait",
            "--timeout=180s",
        ],
        timeout_s=240,
        log=log,
    )
    kubectl.run(
        "wait",
        "--for=condition=Established",
        "crd/rljobs.rollcall.dev",
        "crd/rolloutpools.rollcall.dev",
        "--timeout=60s",
    )
