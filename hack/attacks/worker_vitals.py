"""What the kernel knows about the workers, and what they logged."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.process.pods import Pod

KIB_IN_MIB = 1024
TRACEBACK_CHARACTERS = 3000
_TRACEBACK = "Traceback (most recent call last)"


@dataclass(frozen=True, slots=True)
class WorkerMemory:
    """Resident memory of a worker's process in MiB; `peak` since the last `forget_peaks`."""

    now: float
    peak: float


def process_ids(pods: Sequence[Pod]) -> dict[str, int]:
    """The process of each worker that runs, by pod."""
    return {pod.name: pod.process.pid for pod in pods if pod.process is not None and pod.running}


def forget_peaks(pods: Sequence[Pod]) -> None:
    """From now on the kernel records the workers' peaks of memory from where they are."""
    for pid in process_ids(pods).values():
        Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")


def memory(pods: Sequence[Pod]) -> dict[str, WorkerMemory]:
    """The memory of each worker that runs, by pod."""
    found = {}
    for name, pid in process_ids(pods).items():
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
        values = dict(line.split(":", 1) for line in lines)
        found[name] = WorkerMemory(_mib(values["VmRSS"]), _mib(values["VmHWM"]))
    return found


def tracebacks(pods: Sequence[Pod]) -> list[str]:
    """The tracebacks that the workers have logged in all lives: each as its pod and its text."""
    texts = [
        (pod.name, log.read_text(errors="replace"))
        for pod in pods
        for log in pod.logs
        if log.exists()
    ]
    return [
        f"{name}: {_TRACEBACK}{rest[:TRACEBACK_CHARACTERS]}"
        for name, text in texts
        for rest in text.split(_TRACEBACK)[1:]
    ]


def _mib(text: str) -> float:
    return int(text.split(maxsplit=1)[0]) / KIB_IN_MIB


def listening_ports(address: str) -> list[int]:
    """All TCP ports on which a process listens at an IPv4 address of this machine."""
    host = "".join(f"{int(part):02X}" for part in reversed(address.split(".")))
    found = set()
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        local, state = line.split()[1], line.split()[3]
        name, _, port = local.partition(":")
        if name == host and state == "0A":
            found.add(int(port, 16))
    return sorted(found)
