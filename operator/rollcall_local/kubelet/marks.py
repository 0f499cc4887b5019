"""Which processes belong to a container: they have a mark in their environment.

One that shows a title of its own, as those of vLLM do, wrote it where its environment was. It is
found by its session, in which others have the mark.

Linux alone shows the environment of other processes; elsewhere none are found.
"""

import ctypes
import os
import signal
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from itertools import filterfalse
from pathlib import Path

from rollcall_runtime.rollout.engines.server.guard import GUARD

MARK = "ROLLCALL_LOCAL_CONTAINER"
"""In the environment of each process of a container: which one it is."""
ROOM = "ROLLCALL_LOCAL_ROOM"
"""In the environment of a process that marks forks of itself: room for the mark."""
ROOM_BYTES = 512
_LOOKS, _LOOK_SECONDS = 2, 0.02


def mark_this_process(container: str) -> None:
    """Have /proc show the mark, although this process was forked and not executed.

    It shows the memory in which the environment was at the start, and there it is written.
    ValueError if the name of the container is longer than the room.
    """
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    found = libc.getenv(ROOM.encode())
    if found is None:
        raise ValueError(f"the environment has no {ROOM}")
    length = len(f"{ROOM}=") + ROOM_BYTES
    text = f"{MARK}={container}".encode()
    if len(text) > length:
        raise ValueError(f"the name of the container is too long: {container}")
    ctypes.memmove(found - len(f"{ROOM}="), text.ljust(length, b"\0"), length)


def containers() -> dict[int, str]:
    """The container of each process that has one, but for this process."""
    return _Processes().running()


def marked(container: str = "") -> list[int]:
    """Processes of a container, of any if none is named."""
    return [pid for pid, its in containers().items() if container in {"", its}]


def end_all(first: Mapping[int, str], *, seconds: float, others: Collection[int] = ()) -> list[int]:
    """Kill all processes of containers, given by their first process.

    The guard of an inference server ends by itself, once it has freed what the server left. What
    has ended is taken from the system, if it is this process's child and none of `others`.
    Returns those that are there even after so many seconds.
    """
    for pid in first:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    names, deadline = set(first.values()), time.monotonic() + seconds
    processes = _Processes()
    looks = 0  # that found nothing: one may miss a process that is just being executed
    while True:
        left = [pid for pid, container in processes.running().items() if container in names]
        processes.reap(others)
        looks = 0 if left else looks + 1
        if looks == _LOOKS or time.monotonic() > deadline:
            return left
        for pid in filterfalse(_is_guard, left):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_LOOK_SECONDS)


class _Processes:
    """Those of containers, by their marks, and by the sessions in which marks were seen so far."""

    def __init__(self) -> None:
        self._sessions: dict[int, str] = {}
        self._ended: set[int] = set()  # those that wait for their parents

    def running(self) -> dict[int, str]:
        """The container of each process that has one, but for this process."""
        own, marks, sessions = str(os.getpid()), dict[int, str](), dict[int, int]()
        self._ended.clear()
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended, or is another user's
                session, runs = _session(place)
                if not runs:
                    self._ended.add(int(place.name))
                elif place.name != own:
                    marks[int(place.name)] = _variable(place, MARK)
                    sessions[int(place.name)] = session
        self._sessions |= {sessions[pid]: mark for pid, mark in marks.items() if mark}
        self._sessions.pop(os.getsid(0), None)  # where a test has given marks
        found = {pid: mark or self._sessions.get(sessions[pid], "") for pid, mark in marks.items()}
        return {pid: container for pid, container in found.items() if container}

    def reap(self, others: Collection[int]) -> None:
        """Take what has ended from the system, if it is this process's child and none of `others`:
        whatever waits for its end would wait in vain.
        """
        for pid in self._ended - set(others):
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _is_guard(pid: int) -> bool:
    with suppress(OSError):
        return _variable(Path(f"/proc/{pid}"), GUARD) != ""
    return False


def _session(place: Path) -> tuple[int, bool]:
    """Of a process, and whether it runs: one that has ended may wait for its parent."""
    state, _, _, session = (place / "stat").read_text().rpartition(")")[2].split()[:4]  # proc(5)
    return int(session), state not in "ZX"


def _variable(place: Path, name: str) -> str:
    """Of a process's environment, or nothing."""
    begin = f"{name}=".encode()
    for variable in (place / "environ").read_bytes().split(b"\0"):
        if variable.startswith(begin):
            return variable.removeprefix(begin).decode()
    return ""
