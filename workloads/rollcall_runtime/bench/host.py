"""The machine that a bench runs on: scratch folder, devices, free memory."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rollcall_protocol import pod_contract

_LIMIT = Path("/sys/fs/cgroup/memory.max")
_USED = Path("/sys/fs/cgroup/memory.current")
_MEMINFO = Path("/proc/meminfo")


def spread(number: int) -> None:
    """In the process of the `number`-th member, before it opens its engine: choose its device.

    NCCL refuses two ranks of one host on one GPU. Where there are more members than GPUs, those
    that share one claim to be hosts of their own, and talk over sockets.
    """
    import torch  # noqa: PLC0415 - it takes seconds

    count = torch.accelerator.device_count()
    if count:
        os.environ["LOCAL_RANK"] = str(number % count)
        if number >= count:
            os.environ["NCCL_HOSTID"] = f"member-{number}"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for a while; in a worker with a read-only file system it is in its state volume.

    Raises OSError that says what helps.
    """
    try:
        parent = tempfile.gettempdir()
    except FileNotFoundError as error:
        state = os.environ.get(pod_contract.STATE_DIR)
        if not state:
            raise OSError(
                "no temporary folder is writable; set TMPDIR to a writable folder"
            ) from error
        parent = state
    with tempfile.TemporaryDirectory(dir=parent, prefix="rollcall-") as folder:
        yield Path(folder)


def available_memory() -> int:
    """Bytes that processes may still take here, within the container's limit."""
    fields = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
    free = int(fields["MemAvailable"].split()[0]) * 1024
    if _LIMIT.exists() and (limit := _LIMIT.read_text().strip()) != "max":
        free = min(free, int(limit) - int(_USED.read_text()))
    return free
