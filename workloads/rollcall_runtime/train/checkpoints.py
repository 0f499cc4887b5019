"""Where checkpoints lie: one folder a step, there as a whole or not at all."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PREFIX = "step-"
_STATE_FILE = "state.json"


def checkpoint_path(root: Path, step: int) -> Path:
    """The folder of `step` under `root`."""
    return root / f"{_PREFIX}{step:08d}"


def latest_checkpoint(root: Path) -> Path | None:
    """The newest whole checkpoint under `root`; None if there is none, or no such folder."""
    found = sorted(path.parent for path in root.glob(f"{_PREFIX}*/{_STATE_FILE}"))
    return found[-1] if found else None


def prune_checkpoints(root: Path, *, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints."""
    if keep < 1:
        raise ValueError("at least one checkpoint must be kept")
    for path in sorted(root.glob(f"{_PREFIX}*"))[:-keep]:
        shutil.rmtree(path)


def scratch_path(path: Path) -> Path:
    """Where the ranks write what becomes `path` with the commit."""
    return path.with_name(f".{path.name}.new")


def begin_checkpoint(path: Path) -> None:
    """Make the empty scratch folder; what broken tries left beside it is removed."""
    for left in path.parent.glob(f".{_PREFIX}*"):
        shutil.rmtree(left)
    scratch_path(path).mkdir(parents=True)


def commit_checkpoint(path: Path, *, state: Mapping[str, Any]) -> None:
    """Add `state` (JSON values) to what was written and move it to `path` by renaming."""
    scratch = scratch_path(path)
    with (scratch / _STATE_FILE).open("w", encoding="utf-8") as file:
        json.dump(dict(state), file)
        file.flush()
        os.fsync(file.fileno())
    old = path.with_name(f".{path.name}.old")
    if path.exists():  # the same step again, after a restart from an older one
        path.rename(old)
    scratch.rename(path)
    _sync_folder(path.parent)
    if old.exists():
        shutil.rmtree(old)


def read_state(path: Path) -> dict[str, Any]:
    """The `state` of a committed checkpoint. OSError or ValueError if it is not one."""
    state: dict[str, Any] = json.loads((path / _STATE_FILE).read_text(encoding="utf-8"))
    return state


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
