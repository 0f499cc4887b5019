"""The cache folder: everything built or downloaded, by version, made whole or not at all."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hack.cluster import machine
from hack.cluster.errors import ClusterError, CommandError

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCK_WAIT_S = 3600.0


def root() -> Path:
    """`ROLLCALL_CACHE`, or `rollcall` in the user's cache folder; made if absent."""
    own = os.environ.get("ROLLCALL_CACHE")
    if own:
        path = Path(own).expanduser().absolute()
    else:
        base = os.environ.get("XDG_CACHE_HOME")
        path = (Path(base) if base else Path.home() / ".cache") / "rollcall"
    path.mkdir(parents=True, exist_ok=True)
    return path


def log(name: str) -> Path:
    """The log file of a step."""
    folder = root() / "log"
    folder.mkdir(exist_ok=True)
    return folder / f"{name}.log"


def keep_output(error: Exception) -> Path | None:
    """Writes what a failed program said to a log file; none if it has one or said nothing."""
    if not isinstance(error, CommandError) or error.log or not error.output.strip():
        return None
    path = log("failed-command")
    path.write_text(f"{error.failure}\n{error.output.strip()}\n")
    return path


@contextmanager
def fresh(target: Path) -> Iterator[Path]:
    """Gives a new path to make a file or folder at; it becomes `target` only if all went well.

    What a killed run left half-made is never seen as done; `sweep` removes it.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}.", dir=_temporary()))
    try:
        made = scratch / target.name
        yield made
        if target.is_dir():
            shutil.rmtree(target)
        made.rename(target)
    finally:
        _remove(scratch)


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder of the cache's file system that is gone afterwards."""
    path = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}.", dir=_temporary()))
    try:
        yield path
    finally:
        _remove(path)


def sweep() -> None:
    """Removes what runs left behind that did not live to do so."""
    for entry in _temporary().iterdir():
        pid = entry.name.split(".", 1)[0]
        if not (pid.isdigit() and Path("/proc", pid).exists()):
            _remove(entry)


@contextmanager
def lock(name: str, *, wait_s: float = LOCK_WAIT_S) -> Iterator[None]:
    """Holds the cache's lock `name`, against other processes.

    Raises:
        ClusterError: another process held it for `wait_s` seconds.
    """
    path = root() / f"{name}.lock"
    deadline = time.monotonic() + wait_s
    with path.open("w") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise ClusterError(f"another process holds {path}: wait for it") from error
                time.sleep(0.5)
        yield


def digest(*parts: str | bytes) -> str:
    """Twelve hexadecimal digits that name the given recipe."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "big") + data)
    return total.hexdigest()[:12]


def _remove(path: Path) -> None:
    # A root file system whose making was cut short may still have the machine's own mounted in it.
    machine.unmount_under(path)
    if machine.mounts_under(path):
        raise ClusterError(f"{path} cannot be removed: something is mounted in it")
    shutil.rmtree(path, onerror=_unless_gone)


def _unless_gone(_function: object, _path: str, raised: tuple[Any, Any, Any]) -> None:
    """Another process may remove the same folder."""
    if not isinstance(raised[1], FileNotFoundError):
        raise raised[1]


def _temporary() -> Path:
    path = root() / "tmp"
    path.mkdir(exist_ok=True)
    return path
