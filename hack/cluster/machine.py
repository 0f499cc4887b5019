"""What the machine is and has: limits, kernel settings, processes, mounts, links, cgroups."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hack.cluster.errors import CommandError
from hack.cluster.subprocesses import run

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PROC = Path("/proc")
SYS_CGROUP = Path("/sys/fs/cgroup")
_CAP_SYS_RESOURCE = 24
_RTM_DELLINK, _REQUEST_AND_ACK = 17, 1 | 4  # linux/rtnetlink.h, linux/netlink.h

# What kubelet, kube-proxy and a Docker engine set on the machine as a whole.
WATCHED_SYSCTLS = (
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
    "kernel/pid_max",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "fs/file-max",
    "fs/nr_open",
    "fs/protected_hardlinks",
    "fs/protected_symlinks",
    "fs/protected_fifos",
    "fs/protected_regular",
    "net/ipv4/ip_forward",
    "net/ipv4/conf/all/forwarding",
    "net/ipv4/conf/default/forwarding",
    "net/ipv6/conf/all/forwarding",
    "net/ipv6/conf/default/forwarding",
    "net/bridge/bridge-nf-call-iptables",
    "net/bridge/bridge-nf-call-ip6tables",
    "net/netfilter/nf_conntrack_max",
)


def has_cgroup_v2() -> bool:
    """Whether control groups are of version 2 alone."""
    return (SYS_CGROUP / "cgroup.controllers").exists()


def has_sys_resource() -> bool:
    """Whether processes here may lower their out-of-memory score."""
    for line in (PROC / "self/status").read_text().splitlines():
        if line.startswith("CapBnd:"):
            return bool(int(line.split()[1], 16) >> _CAP_SYS_RESOURCE & 1)
    return False


def read_sysctls(names: Iterable[str] = WATCHED_SYSCTLS) -> dict[str, str]:
    """The values of kernel settings that exist and can be read."""
    values = {}
    for name in names:
        try:
            values[name] = (PROC / "sys" / name).read_text().strip()
        except OSError:
            continue
    return values


def restore_sysctls(saved: Mapping[str, str]) -> list[str]:
    """Sets back the watched settings that differ from `saved`; returns their names.

    Raises:
        OSError: a setting cannot be written.
    """
    now = read_sysctls(saved)
    changed = [name for name, value in saved.items() if now.get(name, value) != value]
    for name in changed:
        (PROC / "sys" / name).write_text(saved[name])
    return changed


def processes_of(folder: Path, *, name: str | None = None) -> list[int]:
    """The processes that run a program in `folder`; only the program `name`, if given."""
    found = []
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            program = Path(str((entry / "exe").readlink()).removesuffix(" (deleted)"))
        except OSError:
            continue
        if program.is_relative_to(folder) and name in (None, program.name):
            found.append(int(entry.name))
    return found


def processes_in_cgroup(name: str) -> list[int]:
    """The processes in the top-level control group `name`, of any hierarchy."""
    found: set[int] = set()
    for top in _cgroups(name):
        for path in top.rglob("cgroup.procs"):
            try:
                found.update(int(line) for line in path.read_text().split())
            except OSError:
                continue
    return sorted(found - {0})


def thaw(name: str) -> None:
    """Let the processes in the top-level control group `name` go on, wherever they are frozen.

    runc freezes a container for a moment; if it is killed then, even SIGKILL waits for ever.
    """
    for top in _cgroups(name):
        for file, thawed in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
            for path in top.rglob(file):
                with contextlib.suppress(OSError):  # it is gone by now
                    path.write_text(thawed)


def remove_cgroups(name: str) -> None:
    """Removes the empty control group `name` with those below it."""
    for _ in range(20):
        for top in _cgroups(name):
            folders = [path for path in top.rglob("*") if path.is_dir()]
            for path in [*sorted(folders, reverse=True), top]:
                try:
                    path.rmdir()
                except OSError:
                    continue
        if not _cgroups(name):
            return
        time.sleep(0.2)


def is_zombie(pid: int) -> bool:
    """Whether a process has ended and only waits for its parent."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def mounts_under(folder: Path) -> list[str]:
    """Mount points in `folder`, the deepest first."""
    points = []
    for line in (PROC / "self/mounts").read_text().splitlines():
        point = line.split()[1].replace("\\040", " ")
        if Path(point).is_relative_to(folder):
            points.append(point)
    return sorted(points, reverse=True)


def unmount_under(folder: Path) -> None:
    """Unmounts everything in `folder`."""
    for point in mounts_under(folder):
        try:
            run(["umount", point], timeout_s=30)
        except CommandError:
            run(["umount", "--lazy", point], timeout_s=30)


def routes() -> list[ipaddress.IPv4Network]:
    """The IPv4 ranges that this machine has routes to, the default route aside."""
    found = []
    for line in (PROC / "net/route").read_text().splitlines()[1:]:
        _, address, *rest = line.split()
        mask = rest[5]
        if int(mask, 16):
            network = socket.inet_ntoa(struct.pack("<L", int(address, 16)))
            netmask = socket.inet_ntoa(struct.pack("<L", int(mask, 16)))
            found.append(ipaddress.IPv4Network(f"{network}/{netmask}"))
    return found


def delete_link(name: str) -> None:
    """Deletes a network link, if it is there, without `ip`, which a minimal Debian lacks.

    Raises:
        OSError: the kernel refused it.
    """
    try:
        index = socket.if_nametoindex(name)
    except OSError:
        return
    body = struct.pack("=BxHiII", socket.AF_UNSPEC, 0, index, 0, 0)  # struct ifinfomsg
    header = struct.pack("=IHHII", 16 + len(body), _RTM_DELLINK, _REQUEST_AND_ACK, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(30)
        kernel.send(header + body)
        (error,) = struct.unpack_from("=i", kernel.recv(4096), 16)  # struct nlmsgerr
    if error:
        raise OSError(-error, f"cannot delete the network link {name}: {os.strerror(-error)}")


def _cgroups(name: str) -> list[Path]:
    if has_cgroup_v2():
        candidates = [SYS_CGROUP / name]
    else:
        candidates = [Path(entry) / name for entry in os.scandir(SYS_CGROUP) if entry.is_dir()]
    return [path for path in candidates if path.is_dir()]
