"""The machine's own view of the cluster, which no API outage hides: processes, namespaces, mounts.

The nodes are containers of an engine on this machine, so every pod's process is visible here.
"""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from hack.cluster import docker_engine
from hack.cluster.errors import ClusterError
from hack.cluster.kind import NODES, WORKERS
from hack.cluster.subprocesses import run
from hack.soak.soak_history import ROLLOUT, TRAINER, WorkerInstance
from rollcall_protocol import pod_contract

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PROC = Path("/proc")
CONTROL_PLANE, WORKER_NODES, ALL_NODES = NODES[0], WORKERS, NODES
_COMMANDS = {"rollcall-trainer": TRAINER, "rollcall-rollout": ROLLOUT}
_SERVER = re.compile(r" vllm\.entrypoints\.|^VLLM::")
_OPEN_TREE, _MOVE_MOUNT = 428, 429  # the same number on all architectures
_AT_FDCWD, _OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC, _MOVE_MOUNT_F_EMPTY_PATH = -100, 1, 0o2000000, 4
_CLONE_NEWNS, _CLONE_NEWNET = 0x00020000, 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)
_inits: dict[str, int] = {}


def chosen_engine() -> docker_engine.Engine:
    """The engine that runs the nodes. ClusterError if none does."""
    found = docker_engine.select(start=False)
    if found is None:
        raise ClusterError("no Docker engine runs: make the local cluster first")
    return found


def node_pid(node: str) -> int:
    """The process id of a node's init; 0 when it does not run."""
    known = _inits.get(node, 0)
    if not (known and (PROC / str(known) / "exe").exists()):
        said = chosen_engine().docker("inspect", "--format", "{{.State.Pid}}", node)
        known = _inits[node] = int(said.strip())
    return known


def workers(namespace: str) -> list[WorkerInstance]:
    """The worker processes of a namespace's pods, trainers first, then by name."""
    found = [worker for _, worker in _worker_processes(namespace)]
    return sorted(found, key=lambda worker: (worker.role != TRAINER, worker.pod))


def processes_of_pods(uids: Sequence[str]) -> list[str]:
    """Processes that belong to pods of these uids, as `pid command`, zombies aside."""
    found = []
    for entry, values in _environments():
        if values.get(pod_contract.POD_UID) in uids:
            found.append(f"{entry.name} {_command(entry)}")
    return found


def process_named(program: str, *, node: str) -> int:
    """The process of a static pod in a node, such as kube-apiserver. ClusterError without one."""
    where = container_of(node)
    for entry in _processes():
        words = _command(entry).split(" ")
        if Path(words[0]).name == program and where in _read(entry / "cgroup"):
            return int(entry.name)
    raise ClusterError(f"{node} runs no {program}")


def processes_in_pod(uid: str) -> list[tuple[int, str]]:
    """All processes in the control groups of a pod, with their commands."""
    names = (uid, uid.replace("-", "_"))
    return [
        (int(entry.name), _command(entry))
        for entry in _processes()
        if any(name in _read(entry / "cgroup") for name in names)
    ]


def inference_server(worker: WorkerInstance) -> int | None:
    """The process of vLLM that a rollout's agent started; None if there is none now."""
    for entry in _processes():
        parent = re.search(r"^PPid:\s(\d+)$", _read(entry / "status"), re.MULTILINE)
        if parent and int(parent[1]) == worker.pid and _SERVER.search(_command(entry)):
            return int(entry.name)
    return None


def container_of(node: str) -> str:
    """The id of a node's container, which its processes' control groups are named after."""
    return chosen_engine().docker("inspect", "--format", "{{.Id}}", node).strip()


def network_namespace(pid: int) -> str:
    """Names the process's network namespace, such as net:[4026532]."""
    return str((PROC / str(pid) / "ns" / "net").readlink())


def network_namespaces(node: int) -> set[str]:
    """The network namespaces that a node keeps, and those in which any process of it runs."""
    found = set()
    for line in _read(PROC / str(node) / "mountinfo").splitlines():
        found.update(re.findall(r"net:\[\d+\]", line))
    return found


def mounts_with(node: int, texts: Sequence[str]) -> list[str]:
    """The mount points in a node whose path has one of `texts`."""
    points = [line.split()[4] for line in _read(PROC / str(node) / "mountinfo").splitlines()]
    return [point for point in points if any(text in point for text in texts)]


def control_groups_with(texts: Sequence[str]) -> list[str]:
    """Control groups whose last folder's name has one of `texts`."""
    root = Path("/sys/fs/cgroup")
    forms = [form for text in texts for form in (text, text.replace("-", "_"))]
    return [
        folder
        for folder, _, _ in os.walk(root)
        if any(form in folder.rsplit("/", 1)[-1] for form in forms)
    ]


def memory_group(pid: int) -> Path:
    """The folder of a process's memory control group, of either version. ClusterError if none."""
    root = Path("/sys/fs/cgroup")
    for line in _read(PROC / str(pid) / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            return root / "memory" / path.lstrip("/")
        if not controllers and (root / "cgroup.controllers").exists():
            return root / path.lstrip("/")
    raise ClusterError(f"process {pid} has no memory control group")


def shared_memory(nodes: Sequence[int]) -> set[str]:
    """What lies in nodes' /dev/shm. A pod's own goes with its network namespace."""
    folders = [PROC / str(node) / "root/dev/shm" for node in nodes]
    return {path.name for folder in folders if folder.exists() for path in folder.iterdir()}


def in_network_of(pid: int, *words: str, tools_of: int | None = None, stdin: str = "") -> str:
    """Runs a program in the process's network namespace; with the files of a node if given."""
    enter = ["nsenter", f"--net=/proc/{pid}/ns/net"]
    if tools_of is not None:
        enter.append(f"--mount=/proc/{tools_of}/ns/mnt")
    return run([*enter, *words], timeout_s=20, stdin=stdin)


def enter_network_of(pid: int) -> None:
    """Moves the calling thread into the process's network namespace."""
    with (PROC / str(pid) / "ns/net").open() as namespace:
        _call(_libc.setns, namespace.fileno(), _CLONE_NEWNET)


def attach(folder: Path, *, node: int, at: str) -> None:
    """Mounts a folder of the machine into a running node, so that both see the same files."""
    tree = _call(
        _libc.syscall,
        _OPEN_TREE,
        _AT_FDCWD,
        str(folder).encode(),
        _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC,
    )
    child = os.fork()
    if child == 0:  # a mount namespace is entered for good, and by processes of one thread alone
        status = 1
        try:
            with (PROC / str(node) / "ns/mnt").open() as namespace:
                _call(_libc.setns, namespace.fileno(), _CLONE_NEWNS)
            Path(at).mkdir(parents=True, exist_ok=True)
            _call(
                _libc.syscall,
                _MOVE_MOUNT,
                tree,
                b"",
                _AT_FDCWD,
                at.encode(),
                _MOVE_MOUNT_F_EMPTY_PATH,
            )
            status = 0
        finally:
            os._exit(status)
    os.close(tree)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise ClusterError(f"{folder} cannot be mounted into the node at {at}")


def _worker_processes(namespace: str) -> Iterator[tuple[Path, WorkerInstance]]:
    for entry, values in _environments():
        words = _command(entry).split(" ")
        role = next((_COMMANDS[Path(w).name] for w in words if Path(w).name in _COMMANDS), None)
        innermost = re.search(r"^NSpid:.*\s(\d+)$", _read(entry / "status"), re.MULTILINE)
        if role is None or innermost is None or innermost[1] != "1":
            continue
        if f'"namespace":"{namespace}"' not in values.get(pod_contract.CONFIG, ""):
            continue
        fields = _read(entry / "stat").rpartition(")")[2].split()
        if not fields:
            continue  # it has ended since its command was read
        yield (
            entry,
            WorkerInstance(
                pod=values[pod_contract.POD_NAME],
                uid=values[pod_contract.POD_UID],
                role=role,
                incarnation=f"{entry.name}.{fields[19]}",
                address=values[pod_contract.POD_IP],
                pid=int(entry.name),
            ),
        )


def _environments() -> Iterator[tuple[Path, dict[str, str]]]:
    for entry in _processes():
        text = _read(entry / "environ")
        if pod_contract.POD_UID in text:
            pairs = (item.split("=", 1) for item in text.split("\0") if "=" in item)
            yield entry, {key: value for key, value in pairs}  # noqa: C416 - pairs are lists


def _processes() -> list[Path]:
    return [entry for entry in PROC.iterdir() if entry.name.isdigit()]


def _command(entry: Path) -> str:
    return _read(entry / "cmdline").replace("\0", " ").strip()


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""  # it has ended


def _call(function: object, *arguments: object) -> int:
    result: int = function(*arguments)  # type: ignore[operator]
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
