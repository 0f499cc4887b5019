"""Moving an image from the engine into a node, without the layers that the node has already."""

from __future__ import annotations

import subprocess
import tarfile
from typing import IO, TYPE_CHECKING

from hack.cluster.errors import CommandError

if TYPE_CHECKING:
    from pathlib import Path

    from hack.cluster.docker_engine import Engine

IDENTITY = "rollcall-image-id"
IMPORT_TIMEOUT_S = 600.0
_BLOBS = "blobs/sha256/"
_CTR = ("ctr", "--namespace", "k8s.io")


def is_there(engine: Engine, node: str, *, image: str, identity: str) -> bool:
    """Whether a node holds the image with this id under this name."""
    name = qualified(image)
    said = engine.docker(
        "exec",
        node,
        *_CTR,
        "images",
        "ls",
        "--quiet",
        f'name=={name},labels."{IDENTITY}"=={identity}',
    )
    return name in said.split()


def load_into_node(engine: Engine, node: str, *, saved: Path, identity: str) -> int:
    """Imports an archive made by `docker save`; returns how many bytes were sent.

    Raises:
        CommandError: the node refused it, or took too long.
    """
    present = set(engine.docker("exec", node, *_CTR, "content", "ls", "--quiet").split())
    process = subprocess.Popen(
        [
            "docker",
            "exec",
            "--interactive",
            node,
            "timeout",
            str(int(IMPORT_TIMEOUT_S)),
            *_CTR,
            "images",
            "import",
            "--local",
            f"--label={IDENTITY}={identity}",
            "-",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=engine.full_env(),
    )
    assert process.stdin is not None
    try:
        sent = thin(saved, process.stdin, present=present)
    except BrokenPipeError:
        sent = 0  # the import has ended early; its status and words say why
    try:
        said, _ = process.communicate(timeout=IMPORT_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        process.kill()
        raise CommandError(
            f"{node}: image import not done after {IMPORT_TIMEOUT_S:.0f} s",
            output=(error.stdout or b"").decode(errors="replace"),
        ) from error
    if process.returncode != 0:
        raise CommandError(f"{node}: image import failed", output=said.decode(errors="replace"))
    if old := replaced_images(engine.docker("exec", node, *_CTR, "images", "ls")):
        engine.docker("exec", node, *_CTR, "images", "rm", *old)
    return sent


def replaced_images(listing: str) -> list[str]:
    """Images of a node whose names have gone to newer ones, of what `ctr images ls` prints.

    The kubelet's names for them by digest (`sha256:...`) would keep gigabytes with each build.
    """
    rows = [line.split() for line in listing.splitlines()[1:]]
    targets = {row[0]: row[2] for row in rows if len(row) > 2}
    named = {target for name, target in targets.items() if not name.startswith("sha256:")}
    return [name for name, target in targets.items() if target not in named]


def thin(saved: Path, target: IO[bytes], *, present: set[str]) -> int:
    """Copies an archive but for blobs in `present` (as `sha256:...`); returns its size.

    Only an archive of the OCI layout can be thinned: importers of the older layout want all of it.
    """
    with tarfile.open(saved) as read:
        members = read.getmembers()
        whole = "oci-layout" not in {member.name for member in members}
        with tarfile.open(fileobj=target, mode="w|") as written:
            for member in members:
                digest = f"sha256:{member.name.removeprefix(_BLOBS)}"
                small = member.size < 1 << 20  # manifests and configurations travel anyway
                if member.name.startswith(_BLOBS) and digest in present and not (whole or small):
                    continue
                written.addfile(member, read.extractfile(member) if member.isreg() else None)
            return written.offset


def qualified(image: str) -> str:
    """The full name that a node knows an image by, such as `docker.io/library/busybox:latest`."""
    name, _, tag = image.rpartition(":") if ":" in image.rsplit("/", 1)[-1] else (image, "", "")
    first = name.split("/")[0]
    if "/" not in name:
        name = f"docker.io/library/{name}"
    elif not ("." in first or ":" in first or first == "localhost"):
        name = f"docker.io/{name}"
    return f"{name}:{tag or 'latest'}"
