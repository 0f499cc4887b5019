"""Which files belong to a folder that others wrote: regular ones, and links that stay inside.

A link may lead anywhere in the volume that holds the folder, and from a snapshot of the Hugging
Face hub's cache to the blobs beside it. One that leads further, to a token of this pod for
instance, is refused.
"""

import os
import stat
from pathlib import Path


def problem_of_file(path: Path, root: Path | None) -> str:
    """Why `path` is not read; empty if it is a regular file, or a folder, below `root`.

    Without a root it may be anywhere. OSError if it is not there.
    """
    real = path.resolve(strict=True)
    if root is not None and not real.is_relative_to(root):
        return f"'{path}' leads to '{real}', outside of '{root}'; put a copy of that file there"
    mode = real.stat().st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return ""
    return f"'{path}' is no file but a pipe, a socket or a device; name a file"


def problem_of_named(path: Path, folder: Path) -> str:
    """As `problem_of_file` for one that a list in `folder` names: it is in there, or links to it.

    OSError if it is not there.
    """
    named = Path(os.path.normpath(path))
    if not any(named.is_relative_to(place) for place in (folder, folder.resolve())):
        return f"'{path}' is outside of '{folder}'; put a copy of that file there"
    return problem_of_file(path, root_of(folder))


def root_of(folder: Path) -> Path:
    """What links in `folder` may lead to: its volume, its model in the hub's cache, or itself."""
    real = folder.resolve()
    own = real.parent.parent if real.parent.name == "snapshots" else real
    return volume_of(folder) or own


def volume_of(folder: Path) -> Path | None:
    """Where the volume is mounted that holds `folder`; None on a person's own file systems."""
    real = folder.resolve()
    mount = next(place for place in (real, *real.parents) if os.path.ismount(place))
    return None if Path.home().is_relative_to(mount) else mount
