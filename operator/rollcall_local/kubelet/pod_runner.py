"""Runs one pod: its volumes, its init containers one after another, then its containers."""

import asyncio
import functools
import itertools
import math
import time
from pathlib import Path
from typing import Any

from rollcall_local.api_server.errors import ApiStatusError
from rollcall_local.kubelet import pod_status
from rollcall_local.kubelet.container_files import ContainerFiles
from rollcall_local.kubelet.container_launch import ContainerLauncher, Launch
from rollcall_local.kubelet.container_runner import ContainerRunner
from rollcall_local.kubelet.node import Node, fields_of
from rollcall_local.kubelet.pod_stop import PodStop
from rollcall_local.kubelet.probes import ask
from rollcall_local.kubelet.volume_content import VolumeError
from rollcall_local.kubelet.volumes import PodVolumes
from rollcall_operator.kube.resources import PODS
from rollcall_operator.plan.timestamps import to_time

Object = dict[str, Any]

AGAIN_SECONDS = 1.0  # between two attempts to have volumes
_USUAL_GRACE = 30
UID_LETTERS = 8  # of a pod's uid, in the name of its folder


def pod_folder(folder: Path, pod: Object) -> Path:
    """Where a pod's logs and volumes are."""
    metadata = pod["metadata"]
    return folder.joinpath(
        "pods", metadata["namespace"], metadata["name"], metadata["uid"][:UID_LETTERS]
    )


def grace_of(pod: Object) -> float:
    """Seconds that a pod has to end."""
    own = pod["spec"].get("terminationGracePeriodSeconds", _USUAL_GRACE)
    return float(pod["metadata"].get("deletionGracePeriodSeconds", own))


class PodRunner:
    """`run` once; `stop` ends it."""

    def __init__(self, pod: Object, node: Node, *, address: str) -> None:
        self.pod, self._node, self._address = pod, node, address
        self.uid: str = pod["metadata"]["uid"]
        self.stopped = PodStop()
        self._folder = pod_folder(node.folder, pod)
        fields = fields_of(pod, address)
        self.volumes = PodVolumes(pod, self._folder / "volumes", node.sources(pod, fields))
        self._launcher = ContainerLauncher(
            pod, node, fields=fields, volumes=self.volumes, folder=self._folder
        )
        spec = pod["spec"]
        policy = spec.get("restartPolicy", "Always")
        until_done = "OnFailure" if policy == "Always" else policy
        self._inits = [self._runner(each, until_done) for each in spec.get("initContainers") or ()]
        self._containers = [self._runner(each, policy) for each in spec["containers"]]
        self._mounted = False
        self._killed_at = math.inf

    @property
    def containers(self) -> list[ContainerRunner]:
        """All, those that run first included."""
        return [*self._inits, *self._containers]

    async def run(self) -> None:
        """Until all containers are over."""
        try:
            self.report()
            await self._mount()
            if await self._initialize():
                async with asyncio.TaskGroup() as group:
                    for runner in self._containers:
                        group.create_task(runner.run())
        finally:
            for runner in self.containers:  # some may never have run
                runner.state.is_over = True
            self.report()

    def stop(self, grace: float) -> None:
        """End all processes within `grace` seconds; less may be said later."""
        self.stopped.set()
        loop = asyncio.get_running_loop()
        if loop.time() + grace < self._killed_at:
            self._killed_at = loop.time() + grace
            loop.call_at(self._killed_at, self._kill)

    def changed(self, pod: Object) -> None:
        """The pod was written by others: a gate may be open."""
        self.pod = pod
        self.report()

    def refresh(self) -> None:
        """Renew what volumes hold."""
        if self._mounted:
            self.volumes.refresh()

    def report(self) -> None:
        """Write the pod's status; a pod that is gone needs none."""
        metadata = self.pod["metadata"]
        pod = self._node.store.find(PODS, metadata["namespace"], metadata["name"])
        if pod is None or pod["metadata"]["uid"] != self.uid:
            return
        patch = pod_status.patch(
            pod,
            address=self._address,
            inits=[runner.state for runner in self._inits],
            containers=[runner.state for runner in self._containers],
            mounted=self._mounted,
            timestamp=now(),
        )
        self.pod = self._node.store.set_status(PODS, metadata["namespace"], metadata["name"], patch)

    def _kill(self) -> None:
        for runner in self.containers:
            runner.kill()

    async def _mount(self) -> None:
        for attempt in itertools.count(1):
            if self.stopped.is_set():
                return
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                self.volumes.prepare()
            except (ApiStatusError, VolumeError, OSError) as error:
                if attempt.bit_count() == 1:  # after 1, 2, 4, 8 s and so on, as by a kubelet
                    note = f"volumes of the pod cannot be had: {error}"
                    self._node.record(self.pod, reason="FailedMount", note=note)
                await self.stopped.unless_set(asyncio.sleep(AGAIN_SECONDS))
            else:
                self._mounted = True
                self.report()
                return

    async def _initialize(self) -> bool:
        """Whether all init containers have ended well."""
        for runner in self._inits:
            await runner.run()
            if runner.state.exit_code != 0:
                return False
        return True

    def _runner(self, spec: Object, policy: str) -> ContainerRunner:
        files = ContainerFiles(self._folder, spec["name"])
        return ContainerRunner(
            spec,
            policy=policy,
            grace=grace_of(self.pod),
            files=files,
            stop=self.stopped,
            prepare=functools.partial(self._launcher.prepare, spec, files.message),
            ask=functools.partial(self._ask, spec),
            changed=self.report,
        )

    async def _ask(self, spec: Object, launch: Launch, probe: Object) -> bool:
        return await ask(
            probe,
            address=self._address,
            container=spec,
            execute=launch.execute,
            session=self._node.session,
        )


def now() -> str:
    """The time as the API has it."""
    return to_time(time.time())
