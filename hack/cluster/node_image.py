"""kind's node image, made on the spot where no registry hands it out.

A minimal Debian, kind's own files, Kubernetes' binaries, and a store that already holds the
images of the control plane, the pod network and the volumes.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hack.cluster import cache, debian_packages, go_build, image_archive, progress
from hack.cluster.errors import ClusterError
from hack.cluster.go_recipes import KUBERNETES, PINNED_KUBERNETES, RECIPES
from hack.cluster.image_archive import Layer
from hack.cluster.progress import Step
from hack.cluster.subprocesses import run, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hack.cluster.docker_engine import Engine

FILES = Path(__file__).parent / "node"
REPOSITORY = "rollcall.local/node"
PACK = Step("packing the node image", 60)
STANDARD = "kindest/node:v1.36.1"  # the default of this release of kind
SUITE = "bookworm"  # its systemd still runs on control groups of version 1
PACKAGES = (
    "systemd",
    "systemd-sysv",
    "dbus",
    "conntrack",
    "iptables",
    "nftables",
    "iproute2",
    "ethtool",
    "socat",
    "kmod",
    "mount",
    "libseccomp2",
    "runc",
    "containernetworking-plugins",
    "e2fsprogs",
    "ca-certificates",
    "curl",
    "jq",
    "procps",
    "hostname",
)
TOOLS = ("busybox-static", "iptables", "nftables", "conntrack")
_APPLETS = (
    "sh",
    "ash",
    "basename",
    "cat",
    "cmp",
    "dirname",
    "echo",
    "grep",
    "ip",
    "ls",
    "mkdir",
    "mv",
    "rm",
    "sleep",
)
_IPTABLES = tuple(
    f"{name}{suffix}" for name in ("iptables", "ip6tables") for suffix in ("", "-save", "-restore")
)
CONTROL = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
PROGRAMS = (
    *CONTROL,
    "kube-proxy",
    "kubelet",
    "kubeadm",
    "kubectl",
    "etcd",
    "coredns",
    "pause",
    "local-path-provisioner",
    "containerd",
    "containerd-shim-runc-v2",
    "ctr",
    "kind",
)
_STORE_CONFIG = """version = 3
disabled_plugins = [
  "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime",
  "io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri", "io.containerd.cri.v1.cri",
]
"""


def steps() -> list[Step]:
    """What making the image shows."""
    roots = [debian_packages.root_step(SUITE, name=name) for name in ("node", "tools")]
    return [*roots, *go_build.steps(PROGRAMS), PACK]


def choose(engine: Engine) -> str | None:
    """The node image to use: none, for kind's own, where that can be had; else one of ours.

    Kind's own has one release of Kubernetes: for another one the image is always ours.
    """
    if KUBERNETES == PINNED_KUBERNETES and engine.pulls(STANDARD):
        return None
    return ensure(engine)


def ensure(engine: Engine) -> str:
    """The name of the node image in `engine`, made now if it is not there."""
    name = f"{REPOSITORY}:{KUBERNETES}-{_recipe()}"
    if engine.holds(name):
        return name
    with cache.lock("node-image"):
        if not engine.holds(name):
            with ThreadPoolExecutor(max_workers=1) as pool:
                # Downloads, beside builds that keep the processors busy.
                packages = pool.submit(_root_file_systems)
                programs = go_build.programs(PROGRAMS)
                node, tools = packages.result()
            with progress.step(PACK), cache.scratch() as folder:
                base = _base(engine, node)
                _lay_out(folder / "tree", programs)
                _preload(folder, programs, tools=tools)
                shutil.copy(FILES / "Dockerfile", folder / "Dockerfile")
                engine.docker(
                    "build",
                    "--quiet",
                    "--network=none",
                    "--build-arg",
                    f"BASE={base}",
                    "--tag",
                    name,
                    folder,
                    timeout_s=600,
                )
            _drop_older(engine, name)
    return name


def _recipe() -> str:
    parts = [SUITE, *PACKAGES, *TOOLS, debian_packages.architecture(), Path(__file__).read_text()]
    parts += [
        f"{group} {recipe.version}"
        for group, recipe in RECIPES.items()
        if not recipe.programs.keys().isdisjoint(PROGRAMS)
    ]
    parts += [path.read_text() for path in sorted(FILES.iterdir())]
    return cache.digest(*parts)


def _root_file_systems() -> tuple[Path, Path]:
    return (
        debian_packages.root_file_system(SUITE, PACKAGES, name="node"),
        debian_packages.root_file_system(SUITE, TOOLS, name="tools", variant="extract"),
    )


def _base(engine: Engine, root: Path) -> str:
    name = f"rollcall.local/node-base:{root.stem.rsplit('-', 1)[-1]}"
    if not engine.holds(name):
        engine.docker("import", root, name, timeout_s=300)
    return name


def _drop_older(engine: Engine, name: str) -> None:
    said = engine.docker("images", "--format", "{{.Repository}}:{{.Tag}}", REPOSITORY)
    for other in said.split():
        if other != name:
            engine.docker("rmi", other, timeout_s=120)


def _lay_out(tree: Path, programs: dict[str, Path]) -> None:
    base = go_build.module_folder("kind") / "images" / "base" / "files"
    shutil.copytree(base, tree)
    for path in [tree, *tree.rglob("*")]:
        scripts = path.parent.name == "bin"
        path.chmod(0o755 if path.is_dir() or scripts else 0o644)
    (tree / "etc/sysctl.d").mkdir(exist_ok=True)
    for name in ("kubelet", "kubeadm", "kubectl"):
        _install(programs[name], tree / "usr/bin" / name)
    for name in ("containerd", "containerd-shim-runc-v2", "ctr"):
        _install(programs[name], tree / "usr/local/bin" / name)
    _install(FILES / "keep-machine-settings", tree / "usr/local/bin/keep-machine-settings")
    (tree / "kind/version").write_text(KUBERNETES)
    (tree / "kind/manifests").mkdir()
    for name in ("default-cni.yaml", "default-storage.yaml"):
        shutil.copy(FILES / name, tree / "kind/manifests" / name)


def _install(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
    target.chmod(0o755)


def _images(
    folder: Path, programs: dict[str, Path], everything: Path
) -> Iterator[tuple[list[str], list[Layer]]]:
    tools = folder / "tools.tar"
    image_archive.without(
        everything,
        tools,
        dropped=("dev/", "proc/", "sys/", "etc/apt/", "etc/resolv.conf", "etc/hostname", "var/"),
    )
    wrapped = Layer(
        files={f"usr/sbin/{name}": FILES / "iptables" for name in _IPTABLES},
        links={f"bin/{name}": "/bin/busybox" for name in _APPLETS},
    )
    required = _required(programs)
    for image in required:
        name = re.sub(r"^.*/", "", image).split(":")[0]
        if name == "kube-proxy":
            own = Layer(files={"usr/local/bin/kube-proxy": programs[name]})
            yield [image], [Layer(archive=tools), wrapped, own]
        elif name == "pause":
            yield [image, _sandbox_image()], [Layer(files={"pause": programs[name]})]
        elif name == "coredns":
            yield [image], [Layer(files={"coredns": programs[name]})]
        else:
            yield [image], [Layer(files={f"usr/local/bin/{name}": programs[name]})]
    network = Layer(
        files={
            "usr/local/bin/pod-network": FILES / "pod-network",
            "usr/bin/kubectl": programs["kubectl"],
        }
    )
    yield ["rollcall.local/pod-network:v1"], [Layer(archive=tools), wrapped, network]
    provisioner = Layer(
        files={"usr/bin/local-path-provisioner": programs["local-path-provisioner"]}
    )
    yield ["rollcall.local/local-path-provisioner:v1"], [provisioner]


def _required(programs: dict[str, Path]) -> list[str]:
    said = run(
        [programs["kubeadm"], "config", "images", "list", "--kubernetes-version", KUBERNETES],
        timeout_s=60,
    )
    return said.split()


def _sandbox_image() -> str:
    base = go_build.module_folder("kind") / "images" / "base" / "files"
    text = (base / "etc/containerd/config.toml").read_text()
    match = re.search(r'sandbox_image = "([^"]+)"', text)
    if match is None:
        raise ClusterError("kind's containerd configuration names no sandbox image")
    return match[1]


def _preload(folder: Path, programs: dict[str, Path], *, tools: Path) -> None:
    store = folder / "tree/var/lib/containerd"
    architecture = debian_packages.architecture()
    with _containerd(store, programs["containerd"]) as socket:
        for names, layers in _images(folder, programs, tools):
            path = folder / "image.tar"
            entrypoint = {"pause": ["/pause"], "coredns": ["/coredns"]}.get(
                names[0].rsplit("/", 1)[-1].split(":")[0], []
            )
            image_archive.write_image(
                path, names=names, layers=layers, architecture=architecture, entrypoint=entrypoint
            )
            run(
                [
                    programs["ctr"],
                    "--address",
                    socket,
                    "--namespace",
                    "k8s.io",
                    "images",
                    "import",
                    "--no-unpack",
                    "--label=io.cri-containerd.pinned=pinned",
                    path,
                ],
                timeout_s=120,
            )
            path.unlink()


@contextmanager
def _containerd(store: Path, program: Path) -> Iterator[Path]:
    # A socket's path may have 108 characters; the cache's may have more.
    with tempfile.TemporaryDirectory(prefix="rollcall-") as short:
        socket = Path(short, "s")
        config = Path(short, "config.toml")
        config.write_text(_STORE_CONFIG)
        log = cache.log("node-image-containerd")
        with log.open("wb") as sink:
            daemon = subprocess.Popen(
                [
                    program,
                    "--config",
                    config,
                    "--root",
                    store,
                    "--state",
                    Path(short, "state"),
                    "--address",
                    socket,
                ],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**os.environ},
            )
        try:
            wait_for("containerd", socket.exists, timeout_s=30, log=log)
            yield socket
        finally:
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(timeout=20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
