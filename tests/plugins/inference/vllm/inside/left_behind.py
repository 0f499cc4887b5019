"""What a rollout leaves behind whose temporary files lie in a folder of its own."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_TORCHS_CACHE = "torchinductor_"  # of the user, by torch in the rollout itself
_SHARED = re.compile(rb" (/dev/shm/\S+)\n")


def processes(folder: Path) -> list[int]:
    """Those of the rollout whose temporary files lie in `folder`: its own, vLLM's, a reward's."""
    wanted, found = re.compile(rb"\0TMPDIR=" + re.escape(bytes(folder)) + rb"[/\0]"), []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted.search(b"\0" + (process / "environ").read_bytes()):
                found.append(int(process.name))
    return found


def shared_memory(processes: Iterable[int]) -> set[Path]:
    """The files of shared memory that these processes have mapped."""
    found: set[bytes] = set()
    for pid in processes:
        with suppress(OSError):
            found |= set(_SHARED.findall(Path(f"/proc/{pid}/maps").read_bytes()))
    return {Path(os.fsdecode(path)) for path in found}


def left(folder: Path, shared: set[Path]) -> list[object]:
    """What there still is of a rollout: processes, shared memory, and temporary files."""
    files = (path for path in folder.iterdir() if not path.name.startswith(_TORCHS_CACHE))
    return [*processes(folder), *filter(Path.exists, shared), *files]
