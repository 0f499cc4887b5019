"""How much a packed file may unpack to: a few bytes may stand for any number of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from pathlib import Path

FREE = 256 << 20  # bytes that any file may unpack to
MOST_TIMES = 200  # beyond them; texts become some 10 times as large
MOST_UNPACKED = 8 << 30  # of what is unpacked into a temporary file


def check_unpacked(size: int, path: Path, *, field: str, most: int | None = None) -> None:
    """SpecError if `path` cannot hold data that unpack to `size` bytes, or if they are too many."""
    if size <= FREE:
        return
    packed = path.stat().st_size
    if size > MOST_TIMES * packed:
        problem = f"unpacks to more than {MOST_TIMES} times its {packed} bytes, as no data do"
        raise SpecError(field, f"{str(path)!r} {problem}; save it again")
    if most is not None and size > most:
        problem = f"unpacks to more than {most} bytes"
        raise SpecError(field, f"{str(path)!r} {problem}; give a file that is not packed")
