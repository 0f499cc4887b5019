"""Whose checkpoints a volume takes: those of the trainer that resumed from it last.

A trainer whose node was given up may live on there, and its volume may not know of it.
"""

import json
import os
from pathlib import Path

from rollcall_runtime.worker.errors import FencedError

_FILE = ".owners"
_KEPT = 256  # older ones are long gone


def claim(root: Path, pod_uid: str) -> None:
    """Be the last in the list of those who write under `root`; for ever out, once another came.

    FencedError if a later trainer has claimed it, OSError if it cannot be read or written.
    """
    owners = _read(root)
    if pod_uid in owners[:-1]:
        raise FencedError(
            f"checkpoints in {root} are pod {owners[-1]}'s now, which resumed later than this one"
        )
    if owners[-1:] == [pod_uid]:
        return
    root.mkdir(parents=True, exist_ok=True)
    new = root / f"{_FILE}.new"
    with new.open("w", encoding="utf-8") as file:
        json.dump([*owners, pod_uid][-_KEPT:], file)
        file.flush()
        os.fsync(file.fileno())
    new.rename(root / _FILE)


def _read(root: Path) -> list[str]:
    try:
        return list(json.loads((root / _FILE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return []
    except (ValueError, TypeError) as error:
        raise OSError(f"{root / _FILE} is damaged ({error}); remove it") from error
