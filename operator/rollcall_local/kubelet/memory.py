"""Which containers use more memory than their limit, from /proc (Linux)."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from rollcall_local.kubelet.marks import containers

_RESIDENT = (b"RssAnon:", b"RssShmem:")
_OWN_SHARE = (b"Pss_Anon:", b"Pss_Shmem:")


def above_limit(limits: Mapping[str, int]) -> dict[str, int]:
    """Bytes by container, of those that use more than their limit; pages of files do not count.

    A page that several processes share, as forks do, is divided among them. The kernel needs long
    to count so, and does it for those containers alone that may be above their limit.
    """
    processes: dict[str, list[int]] = {name: [] for name in limits}
    for pid, container in containers().items():
        if container in processes:
            processes[container].append(pid)
    found = {}
    for name, limit in limits.items():
        if sum(_bytes(pid, "status", _RESIDENT) for pid in processes[name]) > limit:
            used = sum(_bytes(pid, "smaps_rollup", _OWN_SHARE) for pid in processes[name])
            if used > limit:
                found[name] = used
    return found


def _bytes(pid: int, file: str, fields: tuple[bytes, ...]) -> int:
    """The sum of some fields of a file in /proc; 0 for a process that has ended."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/{file}").read_bytes().splitlines()
        return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(fields))
    return 0
