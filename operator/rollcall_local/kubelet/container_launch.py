"""What the containers of a pod are started with, put together anew for each run."""

import asyncio
import itertools
import logging
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollcall_local.api_server.errors import ApiStatusError
from rollcall_local.kubelet import pod_environment
from rollcall_local.kubelet.container_runtime import CANNOT_EXECUTE
from rollcall_local.kubelet.node import Node
from rollcall_local.kubelet.pod_environment import UnsupportedValueError
from rollcall_local.kubelet.processes import CannotStartError, ContainerProcess, ContainerRuntime
from rollcall_local.kubelet.volume_content import VolumeError
from rollcall_local.kubelet.volumes import PodVolumes
from rollcall_protocol import pod_contract

log = logging.getLogger(__name__)

Object = dict[str, Any]


class BadConfigError(CannotStartError):
    """What a container needs cannot be had; the message names it."""

    reason = "CreateContainerConfigError"


def container_id(uid: str, name: str) -> str:
    """How a container of a pod is known to the runtime, and in the marks of its processes."""
    return f"{uid}/{name}"


@dataclass(frozen=True, slots=True)
class Launch:
    """One run of a container, ready to be started."""

    runtime: ContainerRuntime
    container: str
    argv: list[str]
    environment: dict[str, str]
    folder: Path
    mounts: Mapping[str, Path]
    _commands: "itertools.count[int]" = field(default_factory=itertools.count)

    async def start(self, log_file: Path) -> ContainerProcess:
        """Its first process, whose output goes to a file; CannotStartError."""
        return await self._run(self.container, self.argv, log_file)

    async def execute(self, command: list[str]) -> int:
        """The exit code of a command beside it, which is killed if it is not waited for."""
        argv = [pod_environment.with_folders(word, self.mounts) for word in command]
        name = f"{self.container}/command-{next(self._commands)}"
        try:
            process = await self._run(name, argv, Path(os.devnull))
        except CannotStartError as error:
            log.warning("A command beside %s is not run: %s", self.container, error)
            return CANNOT_EXECUTE
        try:
            return await asyncio.shield(process.ended)
        finally:
            process.send(signal.SIGKILL)

    async def _run(self, container: str, argv: list[str], log_file: Path) -> ContainerProcess:
        return await self.runtime.run(
            container=container,
            argv=argv,
            environment=self.environment,
            folder=self.folder,
            log_file=log_file,
        )


class ContainerLauncher:
    """Prepares the launches of one pod's containers."""

    def __init__(
        self,
        pod: Object,
        node: Node,
        *,
        fields: Mapping[str, str],
        volumes: PodVolumes,
        folder: Path,
    ) -> None:
        """`fields` are those of the downward API; `folder` is the pod's."""
        self._node, self._fields, self._volumes = node, fields, volumes
        self._folder = folder
        self._uid, self._namespace = pod["metadata"]["uid"], pod["metadata"]["namespace"]

    async def prepare(self, container: Object, message: Path) -> Launch:
        """Wait for what a container needs; CannotStartError. `message` is its last words' file."""
        try:
            launch = self._launch(container, message)
        except (ApiStatusError, UnsupportedValueError, VolumeError, OSError) as error:
            raise BadConfigError(str(error)) from error
        await launch.runtime.ready()
        return launch

    def _launch(self, container: Object, message: Path) -> Launch:
        mounts = self._volumes.mounts(container)
        own = pod_environment.variables(container, self._fields, self._content)
        own = pod_environment.with_addresses(own, self._node.addresses.of)
        argv = pod_environment.command(container, own, mounts)
        if not argv:
            name = container["name"]
            raise BadConfigError(f"container {name}: command: is required; no image has one here")
        environment = pod_environment.environment(
            own,
            mounts,
            python=self._node.python_of(container),
            hosts_file=self._node.hosts_file,
            gpus=self._node.machine.gpus_of(self._uid),
        )
        environment[pod_contract.EXIT_MESSAGE] = str(message)
        folder = container.get("workingDir") or str(self._folder)
        return Launch(
            runtime=self._node.runtimes.of(self._node.python_of(container), environment),
            container=container_id(self._uid, container["name"]),
            argv=argv,
            environment=environment,
            folder=Path(pod_environment.with_folders(folder, mounts)),
            mounts=mounts,
        )

    def _content(self, kind: str, name: str) -> dict[str, str]:
        content = self._node.read(self._namespace, kind, name)
        return {key: value.decode(errors="replace") for key, value in content.items()}
