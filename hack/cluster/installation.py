"""Installs what a job needs: the cluster, the images and the operator's chart."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence

from hack.cluster.kubectl import OPERATOR_IMAGE, PREFIX, ROOT, TAG, WORKER_IMAGE, Kubectl

EXISTING = os.environ.get("ROLLCALL_USE_KUBECONFIG") == "1"
RELEASE = "rollcall-operator"
SYSTEM_NAMESPACE = "rollcall-system"


def ensure(namespace: str = "default") -> Kubectl:
    """Make the cluster, the images and the operator, as far as they are missing; idempotent."""
    _cluster("up")
    if not EXISTING:
        _cluster("images", "--prefix", PREFIX, "--tag", TAG)
        _cluster("load", OPERATOR_IMAGE, WORKER_IMAGE)
    kubectl = connect(namespace)
    began = time.monotonic()
    install(kubectl)
    print(f"operator installed ({time.monotonic() - began:.0f} s)", file=sys.stderr)
    return kubectl


def connect(namespace: str = "default") -> Kubectl:
    """The running cluster."""
    config = _output("kubeconfig")
    return Kubectl(binary=_output("bin", "kubectl"), kubeconfig=config, namespace=namespace)


def install(kubectl: Kubectl) -> None:
    """Install or upgrade the chart, with the image that was loaded, and wait for it."""
    config = _output("kubeconfig")
    helm = _output("bin", "helm")
    # The image's id makes a rebuilt image of the same name a new rollout of the operator.
    built = TAG if EXISTING else _output("image-id", OPERATOR_IMAGE)
    subprocess.run(
        [
            helm,
            "upgrade",
            "--install",
            RELEASE,
            str(ROOT / "charts" / "rollcall-operator"),
            "--kubeconfig",
            config,
            "--namespace",
            SYSTEM_NAMESPACE,
            "--create-namespace",
            "--set",
            f"image.repository={PREFIX}/operator",
            "--set",
            f"image.tag={TAG}",
            "--set",
            "image.pullPolicy=IfNotPresent",
            "--set-string",
            f"podAnnotations.image={built}",
            "--wait",
            "--timeout",
            "180s",
        ],
        check=True,
        timeout=240,
        stdout=sys.stderr,
    )
    kubectl.run(
        "wait",
        "--for=condition=Established",
        "crd/rljobs.rollcall.dev",
        "crd/rolloutpools.rollcall.dev",
        "--timeout=60s",
    )


def _cluster(*arguments: str) -> None:
    subprocess.run(_command(arguments), check=True, cwd=ROOT)


def _output(*arguments: str) -> str:
    done = subprocess.run(
        _command(arguments), check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    return done.stdout.strip()


def _command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "hack.cluster", *arguments]
