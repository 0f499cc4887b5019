"""Processor time and start of processes, from /proc (proc_pid_stat(5))."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_PARENT, _TIMES, _START = 1, slice(11, 15), 19  # behind the name: user, system, ended children's


def tree_cpu_seconds(root: int, *, proc: Path = PROC) -> float:
    """Of a process, its descendants that run, and all that have ended.

    It only grows while each process that ends is waited for by its parent.
    """
    stats = dict(_stats(proc))
    children: dict[int, list[int]] = {}
    for pid, fields in stats.items():
        children.setdefault(int(fields[_PARENT]), []).append(pid)
    ticks, waiting = 0, [root]
    while waiting:
        pid = waiting.pop()
        ticks += sum(map(int, stats[pid][_TIMES])) if pid in stats else 0
        waiting += children.get(pid, [])
    return ticks / _TICKS


def started(pid: int) -> float:
    """When a process was forked, in seconds of time.time(); OSError if it has ended."""
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return booted + int(_fields(PROC / str(pid))[_START]) / _TICKS


def _stats(proc: Path) -> Iterator[tuple[int, list[str]]]:
    for folder in proc.iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):  # it has ended
                yield int(folder.name), _fields(folder)


def _fields(folder: Path) -> list[str]:
    return (folder / "stat").read_text().rpartition(")")[2].split()
