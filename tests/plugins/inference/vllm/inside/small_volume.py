"""A small file system that a test may fill."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def mounted(path: Path) -> Iterator[None]:
    """A file system of 8 MiB at the folder `path`; the test is skipped where none can be made."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(path)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small tmpfs cannot be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@contextmanager
def filled(path: Path) -> Iterator[None]:
    """No byte is left on the file system at `path`."""
    filler = path / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    try:
        yield
    finally:
        filler.unlink()
