"""Whose checkpoints a volume takes: those of the trainer that resumed from it last.

A trainer whose node was given up may live on there, and its volume may not know of it.
"""

import json
import os
from pathlib import Path

from rollcall_runtime.worker.errors import FencedError

_FILE = ".owners"
_KEPT = 256  # pods; older ones no longer exist


def claim(root: Path, pod_uid: str) -> None:
    """Make `pod_uid` the only pod that may write under `root`, until another pod claims it.

    FencedError if a later trainer has claimed it, OSError if it cannot be read or written.
    """
    owners = _read(root)
    if pod_uid in owners[:-1]:
        raise FencedError(
            f"the checkpoints in {root} belong to pod {owners[-1]}, which resumed later"
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
