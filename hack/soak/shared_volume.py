"""A small volume for checkpoints that all nodes share, and that can be filled to the last byte.

It is a tmpfs of the machine, mounted into each worker node: what a network file system is to a
real cluster, so that a trainer finds its checkpoints on another node too.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hack.cluster import cache, machine
from hack.cluster.subprocesses import run
from hack.soak import host_inspection

if TYPE_CHECKING:
    from pathlib import Path

IN_NODES = "/var/lib/rollcall-chaos"
CLAIM = "checkpoints"
_FILLER = "filler"


class SharedVolume:
    """Use as a context; `name` keeps volumes of several soaks apart."""

    def __init__(self, name: str, *, mebibytes: int) -> None:
        self._name, self._mebibytes = name, mebibytes
        self.folder: Path = cache.root() / "chaos" / name

    def __enter__(self) -> SharedVolume:
        self.folder.mkdir(parents=True, exist_ok=True)
        machine.unmount_under(self.folder)  # of a soak that was killed
        size = f"size={self._mebibytes}m,mode=0777"
        run(["mount", "-t", "tmpfs", "-o", size, "rollcall-chaos", self.folder], timeout_s=20)
        for node in host_inspection.WORKER_NODES:
            self.attach(node)
        return self

    def __exit__(self, *_: object) -> None:
        for node in host_inspection.WORKER_NODES:
            with suppress(OSError):
                _in_node(node, "umount", "--lazy", self.path_in_nodes)
                _in_node(node, "rmdir", self.path_in_nodes)
        run(["umount", "--lazy", self.folder], timeout_s=20)
        self.folder.rmdir()

    @property
    def path_in_nodes(self) -> str:
        """Where nodes have it."""
        return f"{IN_NODES}/{self._name}"

    def attach(self, node: str) -> None:
        """Mount it into a node: at the beginning, and after a node was started again."""
        host_inspection.attach(
            self.folder, node=host_inspection.node_pid(node), at=self.path_in_nodes
        )

    def fill(self) -> None:
        """Take all the space that is left."""
        with (self.folder / _FILLER).open("ab", buffering=0) as filler:
            with suppress(OSError):  # no space left: that is what is wanted
                while True:
                    filler.write(bytes(1 << 16))
            with suppress(OSError):
                while True:
                    filler.write(bytes(512))

    def free(self) -> None:
        """Give the space back."""
        (self.folder / _FILLER).unlink(missing_ok=True)

    @property
    def bytes_free(self) -> int:
        """Free bytes of the volume."""
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize

    def manifests(self, namespace: str) -> list[dict[str, Any]]:
        """A PersistentVolume and the claim that takes it."""
        volume = f"rollcall-chaos-{self._name}"
        spec = {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "resources": {"requests": {"storage": f"{self._mebibytes}Mi"}},
            "volumeName": volume,
        }
        return [
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": volume},
                "spec": {
                    "capacity": {"storage": f"{self._mebibytes}Mi"},
                    "accessModes": ["ReadWriteMany"],
                    "storageClassName": "",
                    "persistentVolumeReclaimPolicy": "Retain",
                    # A node that was started again and does not have it yet must not make another.
                    "hostPath": {"path": self.path_in_nodes, "type": "Directory"},
                    "claimRef": {"namespace": namespace, "name": CLAIM},
                },
            },
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": CLAIM, "namespace": namespace},
                "spec": spec,
            },
        ]


def _in_node(node: str, *words: str) -> None:
    pid = host_inspection.node_pid(node)
    if pid:
        subprocess.run(
            ["nsenter", f"--mount=/proc/{pid}/ns/mnt", *words],
            timeout=20,
            check=False,
            capture_output=True,
        )
