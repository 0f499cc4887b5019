"""Writes files of a local run, so that whenever it is killed each is whole."""

import os
from pathlib import Path


def write_whole(file: Path, content: bytes) -> None:
    """Write a file that this user alone can read, or leave it as it was: OSError."""
    beside = file.with_name(f"{file.name}.new")
    try:
        beside.unlink(missing_ok=True)
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            out.write(content)
        beside.replace(file)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
