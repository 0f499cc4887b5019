"""A cluster of our own engine comes up, comes back after an accident, and leaves no trace.

It is made in a cache of its own beside the real one, whose built parts it shares, so a cluster
that runs already is left alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hack.cluster import cache, docker_engine, machine

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY_ROOT = Path(__file__).parents[3]
SHARED = ("bin", "engine", "host-tools", "rootfs")
VOLATILE = (
    "fs/aio-nr",
    "fs/dentry-state",
    "fs/file-nr",
    "fs/inode-nr",
    "fs/inode-state",
    "fs/quota",
    "kernel/ns_last_pid",
    "kernel/pty/nr",
    "kernel/random",
    "kernel/tainted",
    "net/netfilter/nf_conntrack_count",
    "net/ipv4/route",
    "net/ipv6/route",
    "fs/binfmt_misc",
    "net/ipv4/conf",
    "net/ipv4/neigh",
    "net/ipv6/conf",
    "net/ipv6/neigh",
    "debug",
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(os.geteuid() != 0, reason="an engine of our own takes root"),
]


def traces() -> dict[str, object]:
    """What a cluster could leave behind on the machine."""
    settings = {}
    for path in Path("/proc/sys").rglob("*"):
        name = str(path.relative_to("/proc/sys"))
        if not name.startswith(VOLATILE) and path.is_file():
            settings[name] = next(iter(machine.read_sysctls([name]).values()), None)
    for name in ("net/ipv4/conf/all/forwarding", "net/ipv6/conf/all/forwarding"):
        settings.update(machine.read_sysctls([name]))
    groups = [
        str(path)
        for pattern in ("*", "*/*")
        for path in machine.SYS_CGROUP.glob(pattern)
        if path.is_dir()
    ]
    return {
        "settings": settings,
        "control groups": sorted(groups),
        "links": sorted(path.name for path in Path("/sys/class/net").iterdir()),
        "routes": Path("/proc/net/route").read_text(),
        "mounts": sorted(line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()),
        "firewall": firewall(),
        "run": sorted(path.name for path in Path("/run").iterdir()),
        "processes": machine.processes_of(cache.root() / "engine"),
    }


def firewall() -> str:
    """The rules of both families, as the engine's own tool sees them."""
    programs = sorted((cache.root() / "engine").glob("*/bin/iptables-save"))
    said = subprocess.run([programs[-1]], capture_output=True, text=True, timeout=30, check=True)
    return "\n".join(line for line in said.stdout.splitlines() if not line.startswith("#"))


def command(*words: str, timeout_s: float = 600) -> float:
    """Runs a command of the cluster; returns how long it took."""
    started = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "hack.cluster", *words],
        cwd=REPOSITORY_ROOT,
        timeout=timeout_s,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return time.monotonic() - started


def kill(processes: list[int]) -> None:
    """Kills processes without notice."""
    assert processes
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def names_of_pods() -> str:
    """The names of all pods: the ones of a new cluster differ."""
    said = subprocess.run(
        [
            next((cache.root() / "bin").glob("kubernetes-*/kubectl")),
            f"--kubeconfig={cache.root() / 'cluster' / 'kubeconfig'}",
            "get",
            "pods",
            "--all-namespaces",
            "--output=name",
        ],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return said.stdout


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache beside the real one, with the same built parts."""
    real = cache.root()
    beside = real.with_name(f"{real.name}-test-{os.getpid()}")
    for name in SHARED:
        if (real / name).exists():
            beside.mkdir(exist_ok=True)
            subprocess.run(["cp", "-al", real / name, beside / name], check=True, timeout=120)
    monkeypatch.setenv("ROLLCALL_CACHE", str(beside))
    docker_engine.install()
    yield beside
    docker_engine.stop()
    subprocess.run(["rm", "-rf", beside], check=True, timeout=120)


@pytest.mark.usefixtures("own_cache")
def test_up_accident_up_down_leaves_no_trace() -> None:
    before = traces()

    command("up")
    assert command("up", timeout_s=60) < 10, "a second `up` finds nothing to do"
    pods = names_of_pods()

    home = cache.root() / "engine"
    engine_alone = [
        *machine.processes_of(home, name="dockerd"),
        *machine.processes_of(home, name="containerd"),
    ]
    kill(engine_alone)
    command("up")
    assert names_of_pods() == pods, "the same cluster is back"

    kill(machine.processes_of(home) + machine.processes_in_cgroup(docker_engine.place()))
    command("up")
    assert names_of_pods() == pods, "the same cluster is back"

    command("down")
    assert traces() == before


def test_killed_while_creating(own_cache: Path) -> None:
    before = traces()
    process = subprocess.Popen(
        [sys.executable, "-m", "hack.cluster", "up"], cwd=REPOSITORY_ROOT, start_new_session=True
    )
    log = own_cache / "log" / "kind-create.log"
    deadline = time.monotonic() + 300
    while not (log.exists() and "Starting control-plane" in log.read_text()):
        assert time.monotonic() < deadline, "kind did not start a control plane"
        assert process.poll() is None, "`up` ended by itself"
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=10)

    command("up")
    command("down")
    assert traces() == before
