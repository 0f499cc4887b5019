"""The volumes of a pod as folders, with what a kubelet would write into them."""

import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rollcall_local.api_server.errors import ApiStatusError, MissingObjectError
from rollcall_local.kubelet import volume_content
from rollcall_local.kubelet.volume_content import File, VolumeContent, VolumeError, VolumeSources

log = logging.getLogger(__name__)

Object = dict[str, Any]

KINDS = (
    "configMap",
    "secret",
    "emptyDir",
    "hostPath",
    "persistentVolumeClaim",
    "projected",
    "downwardAPI",
)
"""Kinds of volumes that there are here."""


class PodVolumes:
    """The volumes of one pod below `folder`."""

    def __init__(self, pod: Object, folder: Path, sources: VolumeSources) -> None:
        self._pod, self._folder, self._sources = pod, folder, sources
        self._content = VolumeContent(sources)
        self._written: dict[str, set[str]] = {}

    def prepare(self) -> None:
        """Make all of them; VolumeError, OSError, ApiStatusError while what they name is away."""
        for volume in self._all():
            self._fill(volume)

    def refresh(self) -> None:
        """Write again what has changed since; what cannot be had now stays as it was."""
        for volume in self._all():
            if {"configMap", "secret", "projected"} & volume.keys():
                try:
                    self._fill(volume)
                except MissingObjectError:
                    continue
                except (ApiStatusError, VolumeError, OSError) as error:
                    name = self._pod["metadata"]["name"]
                    log.warning("Volume %s of pod %s is as before: %s", volume["name"], name, error)

    def names(self) -> set[tuple[str, str]]:
        """Kind and name of each ConfigMap and Secret that they have the content of."""
        return {found for volume in self._all() for found in volume_content.names(volume)}

    def claims(self) -> set[str]:
        """Names of the claims that they are of."""
        found = (volume.get("persistentVolumeClaim") for volume in self._all())
        return {claim["claimName"] for claim in found if claim is not None}

    def mounts(self, container: Object) -> dict[str, Path]:
        """The folder, or file, of each mount path of a container; VolumeError, OSError."""
        volumes = {volume["name"]: volume for volume in self._all()}
        found = {}
        for number, mount in enumerate(container.get("volumeMounts") or ()):
            where = f"container {container['name']}: volumeMounts[{number}]"
            if mount["name"] not in volumes:
                raise VolumeError(f"{where}.name: there is no volume {mount['name']}; add it")
            if mount.get("subPathExpr"):
                raise VolumeError(f"{where}.subPathExpr: is not there on one machine; use subPath")
            place = self._place(volumes[mount["name"]])
            if mount.get("subPath"):
                place = _inside(place, mount["subPath"], f"{where}.subPath")
                if not place.exists():
                    place.mkdir(parents=True)
            found[mount["mountPath"].rstrip("/") or "/"] = place
        return found

    def remove(self) -> None:
        """Delete what is the pod's alone."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _all(self) -> Iterator[Object]:
        yield from self._pod["spec"].get("volumes") or ()

    def _place(self, volume: Object) -> Path:
        if "hostPath" in volume:
            return Path(volume["hostPath"]["path"])
        if "persistentVolumeClaim" in volume:
            claim = volume["persistentVolumeClaim"]["claimName"]
            return _inside(self._sources.claims, claim, "claimName")
        return _inside(self._folder, volume["name"], "the name of a volume")

    def _fill(self, volume: Object) -> None:
        place, name = self._place(volume), volume["name"]
        if "hostPath" in volume:
            _check_host_path(volume, place)
            return
        if "persistentVolumeClaim" in volume:
            claim = volume["persistentVolumeClaim"]["claimName"]
            if not self._sources.has_claim(claim):
                raise MissingObjectError(f'persistentvolumeclaim "{claim}" not found')
        place.mkdir(parents=True, exist_ok=True)
        files = self._content.files(volume)
        for path in self._written.get(name, set()) - files.keys():
            (place / path).unlink(missing_ok=True)
        for path, file in files.items():
            _write(_inside(place, path, f"volume {name}: path"), file)
        self._written[name] = set(files)


def _check_host_path(volume: Object, place: Path) -> None:
    kind = volume["hostPath"].get("type", "")
    if kind == "DirectoryOrCreate":
        place.mkdir(parents=True, exist_ok=True)
    elif kind == "FileOrCreate":
        place.touch()
    elif not place.exists():
        raise VolumeError(f"volume {volume['name']}: {place} does not exist on this machine")


def _inside(folder: Path, path: str, what: str) -> Path:
    found = folder / path
    if not found.resolve().is_relative_to(folder.resolve()):
        raise VolumeError(f"{what}: {path!r} leads out of {folder.name}; name a path in it")
    return found


def _write(path: Path, file: File) -> None:
    """It is replaced whole, so that a reader sees the old one or the new one."""
    if path.exists() and path.read_bytes() == file.content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        out.write(file.content)
        os.fchmod(descriptor, file.mode)
    beside.replace(path)
