"""The Docker engine in use: the machine's own, or one that is unpacked and run from the cache.

Our own engine changes nothing on the machine outside its folders but one bridge: it sets no
firewall rule, forwards nothing and has no default bridge. Containers that need the network while
an image is built use the machine's (`build_options`).
"""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hack.cluster import cache, debian_packages, machine, progress
from hack.cluster.errors import ClusterError, CommandError
from hack.cluster.progress import Step
from hack.cluster.subprocesses import run, wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence

NETWORK = "kind"
STEP = Step("starting a Docker engine of our own", 12)
REGISTRY_TIMEOUT_S = 20.0
_SUBNETS = "10.213.{}.0"
_PROGRAMS = ("dockerd", "docker", "docker-proxy", "containerd", "containerd-shim-runc-v2", "runc")
_FROM_NEWER = ("docker.io", "docker-cli", "containerd")
_FROM_HOST = (
    "runc",
    "iptables",
    "libip4tc2",
    "libip6tc2",
    "libxtables12",
    "libmnl0",
    "libnftnl11",
    "libnetfilter-conntrack3",
    "libnfnetlink0",
    "libseccomp2",
)


def place(root: Path | None = None) -> str:
    """What our own engine's folder, bridge and control group are called: one set for a cache.

    Args:
        root: another cache's folder than the one in use.
    """
    return f"rollcall-{cache.digest(str(root or cache.root()))[:5]}"


def run_folder() -> Path:
    """Where our own engine keeps its socket and run-time state."""
    return Path("/run", place())


def socket() -> Path:
    """The socket of our own engine, whether or not it runs."""
    return run_folder() / "docker.sock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A Docker engine that answers.

    Attributes:
        own: whether it is ours, run from the cache.
        env: what the environment of `docker` and `kind` needs to reach it.
    """

    own: bool
    env: dict[str, str] = field(default_factory=dict)

    def docker(self, *args: str | Path, timeout_s: float = 60, stdin: str | None = None) -> str:
        """Runs the `docker` command; returns its standard output."""
        return run(["docker", *args], timeout_s=timeout_s, env=self.env, stdin=stdin)

    def full_env(self) -> dict[str, str]:
        """The whole environment for a program that uses this engine."""
        return {**os.environ, **self.env}

    def build_options(self) -> list[str]:
        """Options that `docker build` needs with this engine."""
        return ["--network=host"] if self.own else []

    def answers(self) -> bool:
        """Whether the engine takes commands now."""
        try:
            self.docker("version", "--format", "{{.Server.Version}}", timeout_s=20)
        except CommandError:
            return False
        return True

    def pulls(self, image: str) -> bool:
        """Whether the engine has this image or can get it from a registry."""
        if self.holds(image):
            return True
        try:
            self.docker("manifest", "inspect", image, timeout_s=REGISTRY_TIMEOUT_S)
        except CommandError:
            return False
        return True

    def holds(self, image: str) -> bool:
        """Whether the engine has this image."""
        return bool(self.docker("images", "--quiet", image).strip())


def select(*, start: bool = True) -> Engine | None:
    """The engine to use: our own if it runs or was killed, else the machine's, else our own.

    Args:
        start: whether to start our own if no engine answers; without it the result is then None.

    Raises:
        ClusterError: none answers and we may not run one.
    """
    own = _own()
    if socket().exists() and own.answers():
        return own
    if not run_folder().exists() and shutil.which("docker"):
        theirs = Engine(own=False)
        if theirs.answers():
            return theirs
    if not start:
        return None
    if os.geteuid() != 0:
        raise ClusterError(
            "no Docker engine answers and this is not root: start Docker (and let this user use "
            "it), or run this as root, which brings an engine of its own"
        )
    with cache.lock("engine"):
        if not (socket().exists() and own.answers()):
            with progress.step(STEP):
                _start()
    return _own()


def stop() -> None:
    """Stops our own engine, if it runs, and removes every trace of it but the cache."""
    for name in ("dockerd", "containerd"):
        _end(_pids(name), signal.SIGTERM, timeout_s=30)
    machine.thaw(place())
    leftovers = machine.processes_of(_home_parent()) + machine.processes_in_cgroup(place())
    _end(leftovers, signal.SIGKILL, timeout_s=20)
    machine.unmount_under(_data())
    machine.unmount_under(run_folder())
    machine.delete_link(place())
    machine.remove_cgroups(place())
    shutil.rmtree(run_folder(), ignore_errors=True)


def traces() -> bool:
    """Whether anything of our own engine is on the machine, apart from the cache."""
    return run_folder().exists() or bool(machine.processes_of(_home_parent()))


def _own() -> Engine:
    return Engine(own=True, env=_client_env())


def _start() -> None:
    home = install()
    engine = _own()
    for name in ("dockerd", "containerd"):
        _end(_pids(name), signal.SIGKILL, timeout_s=20)
    machine.thaw(place())  # what died with the engine, if that was killed
    folder = run_folder()
    folder.mkdir(mode=0o711, exist_ok=True)
    for stale in ("docker.pid", "exec/containerd/containerd.pid", "docker.sock"):
        (folder / stale).unlink(missing_ok=True)
    config = folder / "daemon.json"
    config.write_text(json.dumps(_settings(), indent=2))
    log = cache.log("dockerd")
    with log.open("wb") as sink:
        daemon = subprocess.Popen(
            [home / "bin" / "dockerd", "--config-file", config],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_client_env()},
            start_new_session=True,
            cwd="/",
        )

    def ready() -> bool:
        if daemon.poll() is not None:
            raise CommandError(
                f"dockerd: exit status {daemon.returncode}",
                output=log.read_text(errors="replace"),
                log=log,
            )
        return socket().exists() and engine.answers()

    wait_for("the Docker engine", ready, timeout_s=120, log=log)
    daemon.returncode = 0  # it outlives this process, of which Popen would warn at the end
    if NETWORK not in engine.docker("network", "ls", "--format", "{{.Name}}").split():
        engine.docker(
            "network",
            "create",
            f"--subnet={free_subnet(machine.routes())}",
            "--driver=bridge",
            f"--opt=com.docker.network.bridge.name={place()}",
            NETWORK,
        )


def free_subnet(taken: Sequence[ipaddress.IPv4Network]) -> str:
    """A private range of 256 addresses that no route of the machine covers.

    Raises:
        ClusterError: all of ours are taken.
    """
    for number in range(256):
        subnet = ipaddress.IPv4Network(f"{_SUBNETS.format(number)}/24")
        if not any(subnet.overlaps(other) for other in taken):
            return str(subnet)
    raise ClusterError(f"no free range of addresses in {_SUBNETS.format(0)}/16")


def _settings() -> dict[str, object]:
    return {
        "data-root": str(_data()),
        "exec-root": str(run_folder() / "exec"),
        "pidfile": str(run_folder() / "docker.pid"),
        "hosts": [f"unix://{socket()}"],
        "exec-opts": ["native.cgroupdriver=cgroupfs"],
        "cgroup-parent": f"/{place()}",
        "bridge": "none",
        "iptables": False,
        "ip6tables": False,
        "ip-forward": False,
        "ip-masq": False,
        "log-opts": {"max-size": "20m", "max-file": "2"},
    }


def install() -> Path:
    """The folder of the engine's programs, unpacked now if it is not there."""
    distribution, host = debian_packages.host_release()
    # Debian 12's engine is too old for privileged containers on new kernels, and a newer runc
    # needs a newer C library than Debian 12 has.
    suite = "trixie" if (distribution, host) == ("debian", "bookworm") else host
    home = _home_parent() / f"{suite}-{cache.digest(*_FROM_NEWER, *_FROM_HOST, '2')}"
    if home.exists():
        return home
    with cache.fresh(home) as made:
        debian_packages.unpack(_FROM_NEWER, suite=suite, target=made)
        debian_packages.unpack(_FROM_HOST, suite=host, target=made)
        _link_programs(made)
    return home


def _link_programs(home: Path) -> None:
    folder = home / "bin"
    folder.mkdir()
    for name in _PROGRAMS:
        found = next(
            home / place / name
            for place in ("usr/bin", "usr/sbin", "sbin")
            if (home / place / name).exists()
        )
        (folder / name).symlink_to(Path("..") / found.relative_to(home))
    for name in ("iptables", "ip6tables", "iptables-save"):
        # Found from the script's own place, because the folder is renamed once it is complete.
        (folder / name).write_text(
            "#!/bin/sh\n"
            'home=$(dirname "$(dirname "$(readlink -f "$0")")")\n'
            'libraries=$(dirname "$(ls -d "$home"/usr/lib/*/xtables)")\n'
            'export LD_LIBRARY_PATH="$libraries" XTABLES_LIBDIR="$libraries/xtables"\n'
            f'exec "$home/usr/sbin/xtables-nft-multi" {name} "$@"\n'
        )
        (folder / name).chmod(0o755)


def _client_env() -> dict[str, str]:
    newest = sorted(_home_parent().glob("*/bin"), key=lambda path: path.stat().st_mtime)
    prefix = f"{newest[-1]}{os.pathsep}" if newest else ""
    path = os.environ.get("PATH", "")
    return {
        "PATH": path if path.startswith(prefix) and prefix else f"{prefix}{path}",
        "DOCKER_HOST": f"unix://{socket()}",
        "DOCKER_BUILDKIT": "0",
    }


def _home_parent() -> Path:
    return cache.root() / "engine"


def _data() -> Path:
    return cache.root() / "engine-data"


def _pids(name: str) -> list[int]:
    return list(machine.processes_of(_home_parent(), name=name))


def _end(pids: list[int], number: signal.Signals, *, timeout_s: float) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
    deadline = time.monotonic() + timeout_s
    while any(Path("/proc", str(pid)).exists() and not machine.is_zombie(pid) for pid in pids):
        if time.monotonic() > deadline:
            if number != signal.SIGKILL:
                _end(pids, signal.SIGKILL, timeout_s=timeout_s)
                return
            raise ClusterError(f"processes {pids} do not end")
        time.sleep(0.1)
