"""The pods' processes as this machine sees them: the nodes are containers on it.

So signals go to the exact process, without a kubelet in between, and all times are of one clock.
"""

import ctypes
import json
import os
import socket
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rollcall_protocol.pod_contract import (
    COORDINATOR,
    MEMBERSHIP_PORT,
    POD_UID,
    TRUST_DIR,
    TRUST_FILE,
)
from rollcall_runtime.worker.identity.tls import client_context

PROC = Path("/proc")
COMMAND = b"rollcall-"  # the workers' are named so
CONNECT_SECONDS = 2.0
LOOK_SECONDS = 0.2
_NETWORK = 0x40000000  # CLONE_NEWNET, linux/sched.h
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """A worker's process; `started` is seconds of time.time(), to a clock tick (10 ms)."""

    pid: int
    pod_uid: str
    ticks: int  # of its start, since the machine's
    started: float

    def send(self, number: int) -> float:
        """Send a signal; returns the time just before."""
        at = time.time()
        os.kill(self.pid, number)
        return at

    def alive(self) -> bool:
        """Whether it still runs, as the same process."""
        try:
            return _ticks(self.pid) == self.ticks and _state(self.pid) not in "ZX"
        except OSError:
            return False


def workers(pod_uids: Iterable[str]) -> dict[str, WorkerProcess]:
    """The oldest process of each pod that has one now: its worker, whatever it has forked."""
    wanted, found = set(pod_uids), dict[str, WorkerProcess]()
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    for folder in PROC.iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            if COMMAND not in (folder / "cmdline").read_bytes():
                continue  # what makes a container has its variables already
            uid = _variable(folder, POD_UID)
            if uid not in wanted:
                continue
            pid = int(folder.name)
            ticks = _ticks(pid)
        except OSError:
            continue  # it has ended
        if uid not in found or ticks < found[uid].ticks:
            found[uid] = WorkerProcess(pid, uid, ticks, booted + ticks / _TICKS)
    return found


def worker(
    pod_uid: str, *, other_than: WorkerProcess | None = None, seconds: float = 60.0
) -> WorkerProcess:
    """Wait for a pod's process; TimeoutError when none comes."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = workers([pod_uid]).get(pod_uid)
        if found is not None and (other_than is None or found.pid != other_than.pid):
            return found
        time.sleep(LOOK_SECONDS)
    raise TimeoutError(f"pod {pod_uid}: no process within {seconds:.0f} s")


def log_folders(pod_uid: str) -> list[Path]:
    """Where the nodes keep the logs of a pod's containers, as seen from here."""
    kubelets = (p for p in PROC.iterdir() if p.name.isdecimal() and _name(p) == "kubelet")
    return [
        folder
        for kubelet in kubelets
        for folder in (kubelet / "root/var/log/pods").glob(f"*_{pod_uid}/*")
    ]


def connect_to_coordinator(process: WorkerProcess, *, address: str) -> socket.socket:
    """A connection made inside the network of a worker, by TLS as this one would make it.

    OSError if there is none.
    """
    made = connect(process, address=address, port=MEMBERSHIP_PORT)
    folder = PROC / str(process.pid)
    mounted = as_seen_below(folder / "root", _variable(folder, TRUST_DIR)) / TRUST_FILE
    authorities = json.loads(mounted.read_text())["authorities"]
    if not authorities:
        return made
    host = _variable(folder, COORDINATOR)
    return client_context(authorities).wrap_socket(made, server_hostname=host)


def as_seen_below(root: Path, path: str) -> Path:
    """`path` for a process with this root folder: there links that are absolute begin, too."""
    seen = root
    for part in Path(path).parts[1:]:
        seen = seen / part
        if seen.is_symlink() and seen.readlink().is_absolute():
            seen = as_seen_below(root, str(seen.readlink()))
    return seen


def connect(process: WorkerProcess, *, address: str, port: int) -> socket.socket:
    outcome: list[socket.socket | OSError] = []

    def run() -> None:  # in a thread of its own, which takes its network with it when it ends
        try:
            _enter_network(process.pid)
            outcome.append(socket.create_connection((address, port), CONNECT_SECONDS))
        except OSError as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    made = outcome[0]
    if isinstance(made, OSError):
        raise made
    return made


def _enter_network(pid: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with (PROC / str(pid) / "ns/net").open("rb") as file:
        if libc.setns(file.fileno(), _NETWORK):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def _variable(folder: Path, name: str) -> str:
    key = name.encode() + b"="
    for entry in (folder / "environ").read_bytes().split(b"\0"):
        if entry.startswith(key):
            return entry[len(key) :].decode()
    return ""


def _name(folder: Path) -> str:
    try:
        return (folder / "comm").read_text().strip()
    except OSError:
        return ""


def _fields(pid: int) -> list[str]:
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def _state(pid: int) -> str:
    return _fields(pid)[0]


def _ticks(pid: int) -> int:
    return int(_fields(pid)[19])  # field 22 of proc(5)
