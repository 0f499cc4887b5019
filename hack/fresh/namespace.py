"""The namespaces that the root is entered with, and the process that removes every trace of them.

`python -m hack.fresh.namespace FOLDER` is that process. It makes root and namespaces and holds them
until its standard input is closed: the program that started it is done, or was killed. Then it ends
every process in them and removes the folder, and what a cluster made on the machine outside of it.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hack.cluster import docker_engine, lifecycle, machine
from hack.cluster.errors import ClusterError
from hack.cluster.subprocesses import run, wait_for
from hack.fresh import debian_root

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

PARENT = Path("/var/tmp")  # on a disk, and outside of the caches, which may be handed in
PREFIX = "rollcall-fresh-"
CLEAN_TIMEOUT_S = 300.0
ROLLCALL = "rollcall"
# Of the project's own cache: what belongs to the machine's own cluster and to what runs there now.
_NOT_SHARED = ("cluster", "engine-data", "log", "tmp")
_LAST = """
umount --lazy /machine
rmdir /machine
echo entered
while :; do sleep 3600; done
"""


class Namespaces:
    """A new root with its own mounts, processes, /run and /dev/shm; leaving it removes all of it.

    The network is the machine's: package registries are reached through it.

    Args:
        folder: made now; holds everything that the root and its layers take of the disk.
        caches: folders of the machine by the name that the root has them under in its home's
            `.cache`. They are read there; what is written goes to `folder`.
    """

    def __init__(self, folder: Path, *, caches: Mapping[str, Path]) -> None:
        self.folder = folder
        handed_in = [f"{name}={path}" for name, path in caches.items()]
        self._holder = subprocess.Popen(
            [sys.executable, "-m", __name__, folder, *handed_in],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._holder.stdout is not None
        line = self._holder.stdout.readline()
        if not line:
            raise ClusterError(f"{folder}: its namespaces could not be made")
        self._first = int(line)

    def __enter__(self) -> Namespaces:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._holder.stdin is not None
        self._holder.stdin.close()
        if self._holder.wait(timeout=CLEAN_TIMEOUT_S):
            raise ClusterError(f"{self.folder}: not everything could be removed")

    def run(self, command: str, *, environment: Mapping[str, str]) -> int:
        """Runs a shell command in them, with the outputs of this process; its exit status."""
        words = ["nsenter", f"--target={self._first}", "--mount", "--pid", "/bin/sh", "-c", command]
        return subprocess.run(words, env=dict(environment), check=False).returncode


def home_of(folder: Path) -> Path:
    """The home folder in the root of `folder`: of another name than any of the machine's.

    A cluster's links and control groups are named after its cache's path.
    """
    return Path("/home", folder.name)


def _settings(folder: Path) -> Path:
    """The machine's kernel settings as they were before anything ran in the root of `folder`."""
    return folder / "settings-before.json"


def mounts(folder: Path, caches: Mapping[str, Path]) -> list[list[str | Path]]:
    """The commands that lay out the root of `folder`; makes the folders that they need."""
    root = folder / "root"
    found: list[list[str | Path]] = [
        ["mount", "--bind", root, root],
        ["mount", "--types=proc", "proc", root / "proc"],
        ["mount", "--rbind", "/sys", root / "sys"],
        ["mount", "--rbind", "/dev", root / "dev"],
        ["mount", "--types=tmpfs", "--options=mode=1777", "tmpfs", root / "dev/shm"],
        ["mount", "--types=tmpfs", "--options=mode=755", "tmpfs", root / "run"],
    ]
    for name, cache in caches.items():
        target = root / home_of(folder).relative_to("/") / ".cache" / name
        upper, work, plain = (
            folder / "caches" / name / part for part in ("upper", "work", "plain")
        )
        for path in (target, upper, work, plain):
            path.mkdir(parents=True)
        layers = f"--options=lowerdir={cache},upperdir={upper},workdir={work}"
        found.append(["mount", "--types=overlay", layers, "overlay", target])
        if name == ROLLCALL:
            for own in _NOT_SHARED:
                (upper / own).mkdir()
                os.setxattr(upper / own, "trusted.overlay.opaque", b"y")
            # An engine keeps layers of its own there, which cannot lie on an overlay.
            found.append(["mount", "--bind", plain, target / "engine-data"])
    return found


def sweep() -> None:
    """Removes what runs left whose holding process was killed as well."""
    for folder in PARENT.glob(f"{PREFIX}*"):
        with suppress(BlockingIOError), _holding(folder):
            _clean(folder)


def main() -> int:
    """Holds the namespaces of one folder; prints the process id of the first process in them."""
    parser = argparse.ArgumentParser(prog="python -m hack.fresh.namespace", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("caches", nargs="*", metavar="NAME=PATH")
    options = parser.parse_args()
    folder: Path = options.folder
    caches = dict(named.split("=", 1) for named in options.caches)
    folder.mkdir()
    with _holding(folder):
        try:
            _settings(folder).write_text(json.dumps(machine.read_sysctls()))
            debian_root.make(folder / "root", home=home_of(folder))
            with _entered(folder, {name: Path(path) for name, path in caches.items()}) as first:
                with suppress(BrokenPipeError):  # the starter was killed meanwhile
                    print(first, flush=True)
                sys.stdin.read()
        finally:
            _clean(folder)
    return 0


@contextmanager
def _entered(folder: Path, caches: Mapping[str, Path]) -> Iterator[int]:
    """Gives the id of the first process in the namespaces; afterwards there is none in them."""
    root = folder / "root"
    lines = ["set -eu", *(shlex.join(map(str, words)) for words in mounts(folder, caches))]
    lines += [f"mkdir {root}/machine", f"cd {root}", "pivot_root . machine"]
    lines += [f"exec chroot . /bin/sh -c {shlex.quote(_LAST)}"]
    unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    with subprocess.Popen(
        ["setpriv", "--pdeathsig=KILL", *unshare, "/bin/sh", "-c", "\n".join(lines)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        if holder.stdout.readline() != "entered\n":
            raise ClusterError(f"{root} cannot be entered: exit status {holder.wait(timeout=10)}")
        first = int(Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text())
        try:
            yield first
        finally:
            holder.kill()  # and with it the first process, and with that all others
            gone = Path("/proc", str(first))
            wait_for("the end of its processes", lambda: not gone.exists(), timeout_s=60)


def _clean(folder: Path) -> None:
    home = home_of(folder)
    place = docker_engine.place(home / ".cache" / ROLLCALL)
    machine.thaw(place)
    for pid in machine.processes_in_cgroup(place):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    machine.delete_link(place)
    machine.remove_cgroups(place)
    own = folder / "root" / home.relative_to("/") / ".cache" / ROLLCALL
    caches = own, folder / "caches" / ROLLCALL / "upper"
    # What the cluster saved is no use: it read kernel/pid_max of its own process namespace.
    if any((cache / lifecycle.SAVED_SETTINGS).exists() for cache in caches):
        machine.restore_sysctls(json.loads(_settings(folder).read_text()))
    machine.unmount_under(folder)
    run(["rm", "-rf", "--one-file-system", folder], timeout_s=CLEAN_TIMEOUT_S)
    if machine.processes_in_cgroup(place) or Path("/sys/class/net", place).exists():
        raise ClusterError(f"{place}: its processes or its network link are still there")


@contextmanager
def _holding(folder: Path) -> Iterator[None]:
    # A lock on the folder itself: it goes with the process, however that ends.
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


if __name__ == "__main__":
    sys.exit(main())
