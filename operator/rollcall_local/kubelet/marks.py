"""Which processes belong to a container: they have a mark in their environment.

Linux alone shows the environment of other processes; elsewhere none are found.
"""

import ctypes
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

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
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            container = _container(place)
            if container and place.name != str(os.getpid()):
                found[int(place.name)] = container
    return found


def marked(container: str = "") -> list[int]:
    """Processes of a container, of any if none is named."""
    return [pid for pid, its in containers().items() if container in {"", its}]


def end_all(first: Mapping[int, str], *, seconds: float) -> list[int]:
    """Kill all processes of containers, given by their first process.

    Returns those that are there even after so many seconds.
    """
    for pid in first:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    names, deadline = set(first.values()), time.monotonic() + seconds
    looks = 0  # that found nothing: one may miss a process that is just being executed
    while True:
        left = [pid for pid, container in containers().items() if container in names]
        looks = 0 if left else looks + 1
        if looks == _LOOKS or time.monotonic() > deadline:
            return left
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_LOOK_SECONDS)


def _container(place: Path) -> str:
    mark = f"{MARK}=".encode()
    for variable in (place / "environ").read_bytes().split(b"\0"):
        if variable.startswith(mark):
            return variable.removeprefix(mark).decode()
    return ""
