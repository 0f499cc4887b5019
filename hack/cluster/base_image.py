"""The Debian base of the project's images, made on the spot where no registry hands it out.

It carries this machine's own ways to reach package archives, so images built on it stay here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hack.cluster import cache, debian_packages, package_clients, progress
from hack.cluster.progress import Step

if TYPE_CHECKING:
    from hack.cluster.docker_engine import Engine

STANDARD = "debian:trixie-slim"
SUITE = "trixie"
LABEL = "rollcall.local-base"
BUILD = Step("building the base image", 10)


def steps() -> list[Step]:
    """What making it shows."""
    return [debian_packages.root_step(SUITE, name="base"), BUILD]


def ensure(engine: Engine) -> str:
    """The name of the base to build on: the standard one, or one of ours, made if absent."""
    if engine.pulls(STANDARD):
        return STANDARD
    root = debian_packages.root_file_system(SUITE, ["ca-certificates"], name="base")
    files = package_clients.files(SUITE)
    key = cache.digest(root.name, *(f"{path}\n{text}" for path, text in files.items()))
    name = f"rollcall.local/debian:{SUITE}-{key}"
    if engine.holds(name):
        return name
    plain = f"rollcall.local/debian-plain:{root.stem.rsplit('-', 1)[-1]}"
    if not engine.holds(plain):
        engine.docker("import", root, plain, timeout_s=300)
    with progress.step(BUILD), cache.scratch() as folder:
        for path, text in files.items():
            target = folder / "tree" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        (folder / "Dockerfile").write_text(
            f'FROM {plain}\nCOPY tree/ /\nLABEL {LABEL}=1\nCMD ["bash"]\n'
        )
        engine.docker("build", "--quiet", "--tag", name, folder, timeout_s=300)
    return name
