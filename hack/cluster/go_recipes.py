"""What is built from the Go module proxy: modules, their pinned versions and their programs."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hack.cluster.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Mapping


def kubernetes_version(asked: str) -> str:
    """The release of Kubernetes that is built: the one asked for, or the pinned one for "".

    Raises:
        ClusterError: what is asked for is no release.
    """
    if asked and not re.fullmatch(r"v1\.\d+\.\d+", asked):
        raise ClusterError(
            f"ROLLCALL_KUBERNETES: {asked!r} is no release; give one such as v1.37.2"
        )
    return asked or PINNED_KUBERNETES


PINNED_KUBERNETES = "v1.36.3"
KUBERNETES = kubernetes_version(os.environ.get("ROLLCALL_KUBERNETES", ""))

_VERSION_FLAGS = {
    "gitVersion": KUBERNETES,
    "gitMajor": "1",
    "gitMinor": KUBERNETES.split(".")[1],
    "gitTreeState": "clean",
    "gitCommit": "0" * 40,
    "buildDate": "1970-01-01T00:00:00Z",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One Go module and the programs built from it.

    Attributes:
        module: its path, or an empty string for a program of our own.
        version: its version.
        programs: the binary's name, and its package or the path of our own source file.
        usual_s: seconds that building it takes on 2 cores.
        tags: build tags.
        ldflags: linker flags on top of those that drop symbols.
    """

    module: str
    version: str
    programs: Mapping[str, str]
    usual_s: float
    tags: str = ""
    ldflags: tuple[str, ...] = ()


RECIPES: dict[str, Recipe] = {
    "kubernetes": Recipe(
        module="k8s.io/kubernetes",
        version=KUBERNETES,
        programs={
            name: f"k8s.io/kubernetes/cmd/{name}"
            for name in (
                "kube-apiserver",
                "kube-controller-manager",
                "kube-scheduler",
                "kubelet",
                "kube-proxy",
                "kubeadm",
                "kubectl",
            )
        },
        usual_s=520,
        ldflags=tuple(
            f"-X {package}.{key}={value}"
            for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
            for key, value in _VERSION_FLAGS.items()
        ),
    ),
    "dra-test-driver": Recipe(
        module="k8s.io/kubernetes",
        version=KUBERNETES,
        programs={"dra-test-driver": "k8s.io/kubernetes/test/e2e/dra/test-driver"},
        usual_s=60,
    ),
    "etcd": Recipe(
        module="go.etcd.io/etcd/server/v3",
        version="v3.6.8",
        programs={"etcd": "go.etcd.io/etcd/server/v3"},
        usual_s=35,
    ),
    "containerd": Recipe(
        module="github.com/containerd/containerd/v2",
        version="v2.2.9",
        programs={
            name: f"github.com/containerd/containerd/v2/cmd/{name}"
            for name in ("containerd", "containerd-shim-runc-v2", "ctr")
        },
        usual_s=70,
        tags="no_btrfs no_devmapper no_zfs",
        ldflags=("-X github.com/containerd/containerd/v2/version.Version=v2.2.9",),
    ),
    "coredns": Recipe(
        module="github.com/coredns/coredns",
        version="v1.14.2",
        programs={"coredns": "coredns.go"},
        usual_s=110,
    ),
    "kind": Recipe(
        module="sigs.k8s.io/kind",
        version="v0.32.0",
        programs={"kind": "sigs.k8s.io/kind"},
        usual_s=30,
    ),
    "local-path-provisioner": Recipe(
        module="github.com/rancher/local-path-provisioner",
        version="v0.0.30",
        programs={"local-path-provisioner": "github.com/rancher/local-path-provisioner"},
        usual_s=20,
    ),
    "helm": Recipe(
        module="helm.sh/helm/v3",
        version="v3.19.5",
        programs={"helm": "helm.sh/helm/v3/cmd/helm"},
        usual_s=75,
    ),
    "kwok": Recipe(
        module="sigs.k8s.io/kwok",
        version="v0.7.0",
        programs={"kwok": "sigs.k8s.io/kwok/cmd/kwok"},
        usual_s=110,
    ),
    "actionlint": Recipe(
        module="github.com/rhysd/actionlint",
        version="v1.7.12",
        programs={"actionlint": "github.com/rhysd/actionlint/cmd/actionlint"},
        usual_s=15,
    ),
    "pause": Recipe(module="", version="v1", programs={"pause": "pause.go"}, usual_s=2),
}
