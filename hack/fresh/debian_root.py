"""Makes the minimal Debian root: git, make, python3, certificates, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

from hack.cluster import debian_packages, package_clients
from hack.cluster.subprocesses import run

PACKAGES = ("git", "make", "python3", "ca-certificates")
REPOSITORY_ROOT = Path(__file__).parents[2]
BUNDLE = Path("/srv/rollcall.bundle")
_NETWORK_FILES = ("etc/resolv.conf", "etc/hosts")


def make(root: Path, *, home: Path) -> None:
    """Unpacks the packages to `root`, with this machine's ways to reach package registries.

    Args:
        root: a folder, made now.
        home: the home folder in it, left empty.
    """
    suite = debian_packages.host_release()[1]
    archive = debian_packages.root_file_system(suite, PACKAGES, name="fresh")
    root.mkdir()
    run(["tar", "--extract", "--numeric-owner", f"--file={archive}"], cwd=root, timeout_s=300)
    files = package_clients.files(suite)
    files |= {name: Path("/", name).read_text() for name in _NETWORK_FILES}
    for name in package_clients.environment().values():
        if name.startswith("/") and Path(name).is_file():
            files[name.lstrip("/")] = Path(name).read_text()
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(text)
    _inside(root, home).mkdir(parents=True)
    bundle = _inside(root, BUNDLE)
    run(["git", "-C", REPOSITORY_ROOT, "bundle", "create", bundle, "HEAD"], timeout_s=120)


def environment(home: Path) -> dict[str, str]:
    """The whole environment of a command in the root."""
    return {
        "HOME": str(home),
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        "TERM": os.environ.get("TERM", "dumb"),
        **package_clients.environment(),
    }


def uncommitted() -> bool:
    """Whether the work tree differs from the commit that is cloned."""
    said = run(["git", "-C", REPOSITORY_ROOT, "status", "--porcelain"], timeout_s=60)
    return bool(said.strip())


def _inside(root: Path, path: Path) -> Path:
    return root / path.relative_to("/")
