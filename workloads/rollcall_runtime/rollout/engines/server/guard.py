"""Ends a server's processes and frees what they leave, also for an agent that was killed.

As a program, `guard.py GROUP FOLDER`, it waits until its standard input ends, which is a pipe of
the agent's, then ends that process group and removes the folder of its files. It imports the
standard library alone: it lies beside each server for as long as that runs.
"""

import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

GUARD = "ROLLCALL_GUARD"
"""In the environment of a guard. `rollcall local` kills a container, and lets its guard end."""
END_SECONDS = 5.0  # for killed processes to be gone
_SHARED = Path("/dev/shm")  # noqa: S108 - what is there is looked at, not created
_MAPPED = re.compile(rb" (/dev/shm/\S+)")


def shared_memory(group: int) -> set[Path]:
    """Files of shared memory that the processes of a group have mapped."""
    found: set[Path] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.getpgid(int(folder.name)) == group:
                maps = (folder / "maps").read_bytes()
                found |= {Path(os.fsdecode(path)) for path in _MAPPED.findall(maps)}
    return {path for path in found if path.parent == _SHARED}


def kill(group: int, shared: Iterable[Path] = ()) -> None:
    """Kill all processes of a group, then remove their shared memory, and `shared`."""
    left = {*shared, *shared_memory(group)}
    deadline = time.monotonic() + END_SECONDS
    with suppress(ProcessLookupError):  # raised when none is left
        while time.monotonic() < deadline:
            os.killpg(group, signal.SIGKILL)
            time.sleep(0.01)
    for path in left:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    kill(int(sys.argv[1]))
    shutil.rmtree(sys.argv[2], ignore_errors=True)
