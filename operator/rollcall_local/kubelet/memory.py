"""How much memory containers use, from /proc (Linux)."""

from contextlib import suppress
from pathlib import Path

from rollcall_local.kubelet.marks import containers

_COUNTED = (b"RssAnon:", b"RssShmem:")


def used_by_container() -> dict[str, int]:
    """Bytes by container, of all its processes; pages of files are not counted.

    A page that a forked process still shares with its parent counts for both.
    """
    found: dict[str, int] = {}
    for pid, container in containers().items():
        with suppress(OSError):  # it has ended meanwhile
            found[container] = found.get(container, 0) + resident(pid)
    return found


def resident(pid: int) -> int:
    """Bytes of a process that no file can give back; OSError if there is none."""
    lines = Path(f"/proc/{pid}/status").read_bytes().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(_COUNTED))
