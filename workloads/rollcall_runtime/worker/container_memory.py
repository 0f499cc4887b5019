"""How much memory the container may still use."""

from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")  # version 2, as a container sees its own


def free_memory(cgroup: Path = CGROUP) -> int | None:
    """Bytes below the container's limit, with what the kernel would drop; None without a limit."""
    try:
        limit = (cgroup / "memory.max").read_text(encoding="ascii").strip()
        used = int((cgroup / "memory.current").read_text(encoding="ascii"))
        lines = (cgroup / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:  # version 1, or none
        return None
    if limit == "max":
        return None
    figures = dict(line.split() for line in lines)
    return max(0, int(limit) - used + int(figures.get("inactive_file", 0)))
