"""Pods without containers: a kubelet that only writes the statuses that a real one would.

Trainer rank 0 gets an address of this machine, where its coordinator listens.
"""

import asyncio
import base64
import contextlib
import datetime as dt
import itertools
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from rollcall_operator.api import labels
from rollcall_operator.kube.client import Object
from rollcall_operator.kube.errors import ApiError, ConflictError, NotFoundError, UnreachableError
from rollcall_operator.kube.resources import CONFIG_MAPS, PODS, RL_JOBS, SECRETS
from rollcall_operator.kube.transport import STRATEGIC_PATCH
from rollcall_operator.plan.children.pod_template import TLS_VOLUME
from rollcall_protocol.pod_contract import READINESS_GATE, TRUST_FILE, audience
from rollcall_runtime.worker.identity.tls import ServerCertificate
from rollcall_runtime.worker.identity.token_verifier import TokenVerifier
from rollcall_runtime.worker.identity.trust_file import TrustFile
from tests.apiserver.cluster_user import ClusterUser, eventually
from tests.apiserver.coordinator import Coordinator
from tests.networks import own_network

LOOK_SECONDS = 0.1


class Kubelet:
    """Runs every pod of one namespace, all containers passing their probes.

    `node_of` names a pod's node, empty for none: then its deletion takes effect at once. Pods of
    `stuck` nodes are never let go; those in `failed` (by uid) have ended for good.
    """

    def __init__(self, user: ClusterUser, *, node_of: Callable[[Object], str]) -> None:
        self._user = user
        self._node_of = node_of
        self._network = own_network()
        self._numbers = itertools.count(1)
        self._addresses: dict[str, str] = {}
        self.coordinators: dict[str, Coordinator] = {}
        self._folder = tempfile.TemporaryDirectory()
        self.stuck: set[str] = set()
        self.failed: set[str] = set()

    @property
    def coordinator(self) -> Coordinator:
        """That of the newest trainer pod of rank 0."""
        return list(self.coordinators.values())[-1]

    async def run(self) -> None:
        """Until cancelled. An API server that is away is asked again."""
        while True:
            with contextlib.suppress(ApiError, UnreachableError):
                for pod in await self._user.listed(PODS, labels.JOB):
                    await self._look(pod)
            await asyncio.sleep(LOOK_SECONDS)

    async def close(self) -> None:
        """End all coordinators."""
        for coordinator in self.coordinators.values():
            await coordinator.stop()
            assert not coordinator.outsiders, "the operator's token was refused"
        self._folder.cleanup()

    async def _look(self, pod: Object) -> None:
        meta = pod["metadata"]
        with contextlib.suppress(NotFoundError, ConflictError):
            if "deletionTimestamp" in meta:
                if pod["spec"].get("nodeName") not in self.stuck:
                    await self._let_go(meta["name"], meta["uid"])
            elif meta["uid"] in self.failed:
                if pod["status"]["phase"] != "Failed":
                    await self._patch(meta["name"], {"phase": "Failed"})
            elif meta["uid"] not in self._addresses:
                await self._start(pod)
            else:
                await self._probe(pod)

    async def _let_go(self, name: str, uid: str) -> None:
        coordinator = self.coordinators.get(uid)
        if coordinator is not None:
            await coordinator.stop()
        namespace = self._user.namespace
        await self._user.client.delete(PODS, namespace=namespace, name=name, uid=uid, grace=0)

    async def _start(self, pod: Object) -> None:
        meta = pod["metadata"]
        node = self._node_of(pod)
        if node and not pod["spec"].get("nodeName"):
            await self._user.bind(meta["name"], node=node)
        uid = meta["uid"]
        address = f"{self._network}.{next(self._numbers)}"
        if uid in self.coordinators:  # its pod's status could not be written the last time
            address = self.coordinators[uid].address
        if meta["labels"][labels.ROLE] == labels.TRAINER and uid not in self.coordinators:
            job = await self._user.get(RL_JOBS, meta["labels"][labels.JOB])
            coordinator = Coordinator(
                uid,
                address,
                job["metadata"]["uid"],
                await self._verifier(job),
                await self._certificate(pod),
            )
            await coordinator.start()
            self.coordinators[uid] = coordinator
        status = {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "containerStatuses": [container_status(pod)],
        }
        await self._patch(meta["name"], {**status, **_conditions(pod)})
        self._addresses[uid] = address

    async def _verifier(self, job: Object) -> TokenVerifier:
        """What a coordinator makes of the mounted ConfigMap; NotFoundError while that is away."""
        name, uid = job["metadata"]["name"], job["metadata"]["uid"]
        mounted = await self._user.get(CONFIG_MAPS, labels.trust_name(name))
        path = Path(self._folder.name) / uid
        path.write_text(mounted["data"][TRUST_FILE])
        return TokenVerifier(
            TrustFile(path), audience=audience(uid), namespace=self._user.namespace
        )

    async def _certificate(self, pod: Object) -> ssl.SSLContext:
        """The one of the mounted Secret; NotFoundError while that is away."""
        (name,) = (
            volume["secret"]["secretName"]
            for volume in pod["spec"]["volumes"]
            if volume["name"] == TLS_VOLUME
        )
        mounted = await self._user.get(SECRETS, name)
        folder = Path(self._folder.name) / f"{pod['metadata']['uid']}-tls"
        folder.mkdir(exist_ok=True)
        for file, content in mounted["data"].items():
            (folder / file).write_bytes(base64.b64decode(content))
        return ServerCertificate(folder).context()

    async def _probe(self, pod: Object) -> None:
        before = {c["type"]: c["status"] for c in pod["status"].get("conditions") or ()}
        if before.get("Ready") != all_gates_open(pod):
            await self._patch(pod["metadata"]["name"], _conditions(pod))

    async def _patch(self, name: str, status: Object) -> None:
        await self._user.client.transport.request(
            "PATCH",
            PODS.path(namespace=self._user.namespace, name=name, subresource="status"),
            verb="patch_status",
            plural=PODS.plural,
            body={"status": status},
            content_type=STRATEGIC_PATCH,
        )


def all_gates_open(pod: Object) -> str:
    """A pod is ready when its containers are, and every readiness gate is open."""
    gates = [gate["conditionType"] for gate in pod["spec"].get("readinessGates") or ()]
    conditions = {c["type"]: c["status"] for c in pod["status"].get("conditions") or ()}
    return str(all(conditions.get(gate) == "True" for gate in gates))


def _conditions(pod: Object) -> Object:
    statuses = {"ContainersReady": "True", "Ready": all_gates_open(pod)}
    return {
        "conditions": [
            {"type": kind, "status": status, "lastTransitionTime": now()}
            for kind, status in statuses.items()
        ]
    }


def container_status(pod: Object, *, ready: bool = True, restarts: int = 0) -> Object:
    """The worker's container, which runs."""
    return {
        "name": pod["spec"]["containers"][0]["name"],
        "image": "i",
        "imageID": "i",
        "ready": ready,
        "started": True,
        "restartCount": restarts,
        "state": {"running": {"startedAt": now()}},
    }


def now() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@contextlib.asynccontextmanager
async def kubelet(
    user: ClusterUser, *, node_of: Callable[[Object], str] = lambda _: ""
) -> AsyncIterator[Kubelet]:
    """One that runs as long as the context."""
    made = Kubelet(user, node_of=node_of)
    task = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        failed = task.done()
        task.cancel()
        (error,) = await asyncio.gather(task, return_exceptions=True)
        await made.close()
        assert not failed, repr(error)


async def rollouts(user: ClusterUser, count: int, *, ready: bool = True) -> dict[str, Any]:
    """Wait for so many rollout pods, none on its way out; by uid."""

    async def there() -> dict[str, Any] | None:
        pods = await user.listed(PODS, f"{labels.ROLE}={labels.ROLLOUT}")
        found = {pod["metadata"]["uid"]: pod for pod in pods}
        leaving = any("deletionTimestamp" in pod["metadata"] for pod in pods)
        if leaving or len(found) != count or (ready and not all(map(is_ready, pods))):
            return None
        return found

    return await eventually(there, f"{count} rollouts, ready: {ready}")


def is_ready(pod: Object) -> bool:
    """Whether the pod's condition says so."""
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def gate_is_open(pod: Object) -> bool:
    """Whether the operator has said that the weights are current."""
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(c["type"] == READINESS_GATE and c["status"] == "True" for c in conditions)
