"""A kubelet with a store of its own, whose containers are small programs of a shell."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import aiohttp

from rollcall_local.api_server.service_tokens import ServiceTokens
from rollcall_local.api_server.store import Entry, Key, ObjectStore
from rollcall_local.kubelet.addresses import hold_network
from rollcall_local.kubelet.kubelet import Kubelet
from rollcall_local.kubelet.logs import log_reader
from rollcall_local.kubelet.machine import Machine
from rollcall_local.kubelet.marks import containers
from rollcall_local.kubelet.node import Node
from rollcall_local.kubelet.processes import ContainerRuntimes
from rollcall_operator.kube.resources import EVENTS, PODS, SERVICE_ACCOUNTS
from tests.unit.rollcall_local.kubelet.containers_here import SECONDS

Object = dict[str, Any]

NAMESPACE = "default"


class Here:
    """A kubelet that runs, and what tests do to its pods."""

    def __init__(
        self, folder: Path, runtimes: ContainerRuntimes, session: aiohttp.ClientSession
    ) -> None:
        self._changes: list[asyncio.Event] = []
        self.store = ObjectStore(changed=self._changed)
        self.node = Node(
            store=self.store,
            tokens=ServiceTokens(folder / "key.pem"),
            machine=Machine({"cpu": Decimal(4), "memory": Decimal(2**40)}),
            addresses=hold_network(),
            runtimes=runtimes,
            session=session,
            folder=folder,
            python=Path(sys.executable),
        )
        self.kubelet = Kubelet(self.node)
        self.running = asyncio.create_task(self.kubelet.run())
        account = {"metadata": {"name": "default", "namespace": NAMESPACE}}
        self.store.create(SERVICE_ACCOUNTS, account)

    def _changed(self, key: Key, _: Entry | None) -> None:
        self.kubelet.notify(key)
        for event in self._changes:
            event.set()

    def create(self, script: str = "", *, name: str = "web", **spec: Any) -> str:
        """A pod of one container that runs a script, or of those that `spec` has; its uid."""
        worker = {"name": "worker", "command": ["sh", "-c", script]}
        body = {
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"containers": [worker], "terminationGracePeriodSeconds": 30, **spec},
        }
        return str(self.store.create(PODS, body)["metadata"]["uid"])

    def delete(self, name: str = "web", *, grace: int | None = None) -> None:
        """Delete a pod, as kubectl does."""
        self.store.delete(PODS, NAMESPACE, name, grace=grace)

    def find(self, name: str = "web") -> Object | None:
        """The pod, if it is there."""
        return self.store.find(PODS, NAMESPACE, name)

    def status(self, name: str = "web") -> Object:
        """Its status."""
        found: Object = self.store.get(PODS, NAMESPACE, name).get("status") or {}
        return found

    def state(
        self, name: str = "web", container: str = "worker", *, field: str = "state"
    ) -> Object:
        """A container's."""
        status = self.status(name)
        every = [*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ())]
        found: Object = next((c[field] for c in every if c["name"] == container), {})
        return found

    def restarts(self) -> int:
        """Of the one container."""
        return sum(each["restartCount"] for each in self.status().get("containerStatuses", ()))

    def output(self, name: str = "web", container: str = "worker") -> str:
        """What a container has written."""
        pod = self.store.get(PODS, NAMESPACE, name)
        return log_reader(self.node.folder)(pod, container, None, None).decode()

    def notes(self, reason: str) -> list[str]:
        """What events say."""
        return [e["note"] for e in self.store.listed(EVENTS) if e["reason"] == reason]

    def processes(self, uid: str) -> list[int]:
        """Those of a pod."""
        return [pid for pid, container in containers().items() if container.startswith(uid)]

    async def until(self, holds: Callable[[], Any]) -> None:
        """Wait for changes of objects; TimeoutError."""
        changed = asyncio.Event()
        self._changes.append(changed)
        async with asyncio.timeout(SECONDS):
            while not holds():
                changed.clear()
                await changed.wait()
        self._changes.remove(changed)

    async def said(self, text: str, name: str = "web") -> None:
        """Wait for output of a pod."""
        async with asyncio.timeout(SECONDS):
            while text not in self.output(name):
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def kubelet_here(folder: Path, runtimes: ContainerRuntimes) -> AsyncIterator[Here]:
    """All pods end with the context, and no process is left; `runtimes` stay."""
    async with aiohttp.ClientSession() as session:
        here = Here(folder, runtimes, session)
        uids = set[str]()
        try:
            yield here
            assert here.running.cancelled() or not here.running.done()
            uids = {pod["metadata"]["uid"] for pod in here.store.listed(PODS)}
            await here.kubelet.close(grace=0.0)
        finally:
            here.running.cancel()
            await asyncio.gather(here.running, return_exceptions=True)
            here.node.addresses.close()
        assert [uid for uid in uids if here.processes(uid)] == []
