"""A kubelet that runs pods as processes of this machine: real workers, and no container.

A pod gets an address in 127/8, its volumes as folders with what a kubelet would write into them,
and its environment with these folders in the place of mount paths. A process that ends is started
again, as a container is.
"""

import asyncio
import base64
import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from rollcall_local.kubelet import pod_environment
from rollcall_local.kubelet.node import fields_of
from rollcall_operator.api import labels
from rollcall_operator.kube.client import Object
from rollcall_operator.kube.resources import CONFIG_MAPS, SECRETS
from rollcall_protocol import pod_contract
from tests.apiserver.cluster_user import ClusterUser
from tests.apiserver.kubelet import Kubelet, all_gates_open, container_status, now
from tests.process.pods import AT_IMPORT, Pod

PROBE_SECONDS, FAILED_PROBES = 1.0, 3  # as many in a row make a pod not ready


@dataclass(slots=True)
class WorkerProcess(Pod):
    """A pod, and what its probes found."""

    ready: bool = False
    failed_probes: int = 0

    @property
    def restarts(self) -> int:
        return max(0, len(self.logs) - 1)


class ProcessKubelet(Kubelet):
    """Runs every pod of one namespace; their jobs must have TLS disabled, as there is no DNS."""

    def __init__(self, user: ClusterUser, folder: Path) -> None:
        super().__init__(user, node_of=lambda _: "")
        self._root = folder
        self.workers: dict[str, WorkerProcess] = {}  # by pod uid
        self.unwatched: set[str] = set()  # uids of pods on a node that hangs: they stay as they are

    def of_role(self, role: str) -> list[WorkerProcess]:
        """Those of pods that are not gone, the oldest first."""
        return [worker for worker in self.workers.values() if worker.role == role]

    @property
    def trainer(self) -> WorkerProcess:
        return self.of_role(labels.TRAINER)[-1]

    async def close(self) -> None:
        await asyncio.gather(*map(_ended, self.workers.values()))
        await super().close()

    async def _start(self, pod: Object) -> None:
        meta = pod["metadata"]
        coordinator = self._coordinator(meta["labels"][labels.JOB])
        is_first = meta["name"] == pod_contract.trainer_pod(meta["labels"][labels.JOB], 0)
        if coordinator is None and not is_first:
            return  # the trainer's pod has no address yet
        address = self._addresses.get(meta["uid"]) or f"{self._network}.{next(self._numbers)}"
        folder = self._root / meta["name"]
        folder.mkdir(parents=True, exist_ok=True)
        folders = await self._volumes(pod, folder)
        worker = WorkerProcess(
            meta["name"],
            meta["uid"],
            address,
            meta["labels"][labels.ROLE],
            folder,
            _variables(pod, address, coordinator or address, folders),
        )
        await worker.start()
        self.workers[worker.uid] = worker
        self._addresses[meta["uid"]] = address
        await self._report(pod, worker, ready=False)

    async def _probe(self, pod: Object) -> None:
        worker = self.workers[pod["metadata"]["uid"]]
        if worker.uid in self.unwatched:
            return
        if not worker.running:
            worker.ready = False
            await worker.start()
        worker.failed_probes = 0 if await _is_ready(worker.address) else worker.failed_probes + 1
        if worker.failed_probes in {0, FAILED_PROBES}:
            worker.ready = not worker.failed_probes
        ready = worker.ready
        (container,) = pod["status"].get("containerStatuses") or [{}]
        conditions = {c["type"]: c["status"] for c in pod["status"].get("conditions") or ()}
        reported = (container.get("ready"), container.get("restartCount"), conditions.get("Ready"))
        if reported != (ready, worker.restarts, str(ready and all_gates_open(pod) == "True")):
            await self._report(pod, worker, ready=ready)

    async def _let_go(self, name: str, uid: str) -> None:
        worker = self.workers.pop(uid, None)
        if worker is not None:
            await _ended(worker)
        await super()._let_go(name, uid)

    def _coordinator(self, job: str) -> str | None:
        name = pod_contract.trainer_pod(job, 0)
        found = (worker.address for worker in self.workers.values() if worker.name == name)
        return next(found, None)

    async def _report(self, pod: Object, worker: WorkerProcess, *, ready: bool) -> None:
        container = container_status(pod, ready=ready, restarts=worker.restarts)
        whole = str(ready and all_gates_open(pod) == "True")
        statuses = {"ContainersReady": str(ready), "Ready": whole}
        await self._patch(
            worker.name,
            {
                "phase": "Running",
                "podIP": worker.address,
                "podIPs": [{"ip": worker.address}],
                "containerStatuses": [container],
                "conditions": [
                    {"type": kind, "status": status, "lastTransitionTime": now()}
                    for kind, status in statuses.items()
                ],
            },
        )

    async def _volumes(self, pod: Object, folder: Path) -> dict[str, Path]:
        """Mount path to folder; NotFoundError while a ConfigMap or Secret is away."""
        found = {}
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        for mount in pod["spec"]["containers"][0]["volumeMounts"]:
            path = folder / mount["name"]
            path.mkdir(exist_ok=True)
            for name, content in (await self._content(pod, volumes[mount["name"]])).items():
                (path / name).write_bytes(content)
            found[mount["mountPath"]] = path
        return found

    async def _content(self, pod: Object, volume: Object) -> dict[str, bytes]:
        if "projected" in volume:
            sources = [s["serviceAccountToken"] for s in volume["projected"]["sources"]]
            return {s["path"]: (await self._token(pod, s)).encode() for s in sources}
        if "configMap" in volume:
            mounted = await self._user.get(CONFIG_MAPS, volume["configMap"]["name"])
            return {name: text.encode() for name, text in mounted["data"].items()}
        if "secret" in volume:
            mounted = await self._user.get(SECRETS, volume["secret"]["secretName"])
            return {name: base64.b64decode(text) for name, text in mounted["data"].items()}
        return {}

    async def _token(self, pod: Object, source: Object) -> str:
        meta = pod["metadata"]
        bound = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
        status = await self._user.client.create_token(
            namespace=meta["namespace"],
            account=pod["spec"].get("serviceAccountName", "default"),
            spec={
                "audiences": [source["audience"]],
                "expirationSeconds": source["expirationSeconds"],
                "boundObjectRef": bound,
            },
        )
        token: str = status["token"]
        return token


async def _ended(worker: WorkerProcess) -> None:
    """End it, also one that is stopped."""
    worker.send(signal.SIGCONT)
    await worker.close()


def _variables(
    pod: Object, address: str, coordinator: str, folders: dict[str, Path]
) -> dict[str, str]:
    (container,) = pod["spec"]["containers"]
    found = pod_environment.variables(container, fields_of(pod, address), lambda *_: {})
    return {
        "PATH": os.environ["PATH"],
        **AT_IMPORT,
        **{name: pod_environment.with_folders(text, folders) for name, text in found.items()},
        pod_contract.COORDINATOR: coordinator,
    }


async def _is_ready(address: str) -> bool:
    url = f"http://{address}:{pod_contract.METRICS_PORT}/readyz"
    timeout = aiohttp.ClientTimeout(total=PROBE_SECONDS)
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as answer:
            return answer.status == 200
    return False
