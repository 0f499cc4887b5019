"""Container images written by hand, for machines where no registry hands them out."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of an image: an existing archive, or files and links of ours.

    Attributes:
        archive: a tar archive to take as it is.
        files: paths in the image without a leading slash, and the file to put there (mode 0755).
        links: paths in the image, and what they point to.
    """

    archive: Path | None = None
    files: Mapping[str, Path] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)


def write_image(
    target: Path,
    *,
    names: Sequence[str],
    layers: Sequence[Layer],
    architecture: str,
    entrypoint: Sequence[str] = (),
) -> None:
    """Writes an archive that `ctr images import` and `docker load` take.

    Args:
        target: the archive to write.
        names: the image's references.
        layers: the lowest first.
        architecture: such as `amd64`.
        entrypoint: what a container of it runs.
    """
    with tarfile.open(target, "w") as image:
        digests: list[str] = []
        for layer in layers:
            path = layer.archive or _pack(layer, target.with_suffix(f".layer{len(digests)}"))
            with path.open("rb") as data:
                digests.append(hashlib.file_digest(data, "sha256").hexdigest())
            image.add(path, arcname=f"{digests[-1]}.tar", filter=_anonymous)
            if path != layer.archive:
                path.unlink()
        config = {
            "architecture": architecture,
            "os": "linux",
            "config": {"Env": [f"PATH={PATH}"], "Entrypoint": list(entrypoint) or None},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
        }
        manifest = [
            {
                "Config": "config.json",
                "RepoTags": list(names),
                "Layers": [f"{digest}.tar" for digest in digests],
            }
        ]
        for name, content in (("config.json", config), ("manifest.json", manifest)):
            text = json.dumps(content).encode()
            member = tarfile.TarInfo(name)
            member.size = len(text)
            image.addfile(member, io.BytesIO(text))


def _pack(layer: Layer, target: Path) -> Path:
    with tarfile.open(target, "w") as packed:
        folders: set[str] = set()
        for name in [*layer.files, *layer.links]:
            for parent in [str(parent) for parent in reversed(Path(name).parents)][1:]:
                if parent not in folders:
                    folders.add(parent)
                    member = tarfile.TarInfo(parent)
                    member.type, member.mode = tarfile.DIRTYPE, 0o755
                    packed.addfile(member)
        for name, source in layer.files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = source.stat().st_size, 0o755
            with source.open("rb") as data:
                packed.addfile(member, data)
        for name, pointed in layer.links.items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, pointed
            packed.addfile(member)
    return target


def without(source: Path, target: Path, *, dropped: Sequence[str]) -> None:
    """Copies a tar archive but for members whose path starts with one of `dropped`."""
    with tarfile.open(source) as read, tarfile.open(target, "w") as written:
        for member in read:
            if member.name.removeprefix("./").startswith(tuple(dropped)):
                continue
            written.addfile(member, read.extractfile(member) if member.isreg() else None)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member
