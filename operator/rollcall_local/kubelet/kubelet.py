"""Follows all pods: gives each its share of the machine, runs it, and lets it go."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from rollcall_local.api_server.kinds import CLAIMS
from rollcall_local.api_server.store import Key
from rollcall_local.kubelet import pod_status
from rollcall_local.kubelet.addresses import NoAddressError
from rollcall_local.kubelet.container_launch import container_id
from rollcall_local.kubelet.container_runtime import END_SECONDS
from rollcall_local.kubelet.deleted_claims import DeletedClaims
from rollcall_local.kubelet.machine import memory_limit, requests
from rollcall_local.kubelet.memory import above_limit
from rollcall_local.kubelet.node import NAME, Node
from rollcall_local.kubelet.pod_runner import PodRunner, grace_of, now
from rollcall_operator.kube.resources import CONFIG_MAPS, NODES, PODS, SECRETS

log = logging.getLogger(__name__)

Object = dict[str, Any]

REFRESH_SECONDS, LOOK_SECONDS, MEMORY_SECONDS = 30.0, 1.0, 1.0
_CONTENT = {CONFIG_MAPS.plural: "ConfigMap", SECRETS.plural: "Secret"}


class Kubelet:
    """`notify` of each change in the store; the work is done in `run`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._changed: set[Key] = set()
        self._woken = asyncio.Event()
        self._runners: dict[Key, PodRunner] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._closing = False
        self._deleted_claims = DeletedClaims(node.claims, is_needed=self._has_claim)

    def notify(self, key: Key) -> None:
        """An object has changed, or is gone."""
        if key.plural in {PODS.plural, CLAIMS.plural, *_CONTENT}:
            self._changed.add(key)
            self._woken.set()

    async def run(self) -> None:
        """Until cancelled; then all pods' processes are killed."""
        self._register()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._refresh())
            group.create_task(self._watch_memory())
            await self._follow(group)

    async def close(
        self, *, grace: float | None, last: Callable[[Object], bool] = lambda _: False
    ) -> None:
        """Run no more pods, and end all there are within `grace` seconds; None: their own time.

        Pods for which `last` holds end after the others have.
        """
        self._closing = True
        for is_last in (False, True):
            await self._end({k for k, r in self._runners.items() if last(r.pod) == is_last}, grace)

    async def _end(self, keys: set[Key], grace: float | None) -> None:
        longest = 0.0
        for key in keys:
            runner = self._runners[key]
            seconds = grace_of(runner.pod) if grace is None else grace
            longest = max(longest, seconds)
            runner.stop(seconds)
        if keys:
            tasks = [self._tasks[key] for key in keys]
            _, left = await asyncio.wait(tasks, timeout=longest + 2 * END_SECONDS)
            for task in left:
                log.warning("The end of %s takes too long", task.get_name())

    def _register(self) -> None:
        capacity = {name: f"{amount:f}" for name, amount in self._node.machine.capacity.items()}
        self._node.store.create(NODES, {"metadata": {"name": NAME}, "spec": {}})
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": now()}
        status = {"conditions": [ready], "capacity": capacity, "allocatable": capacity}
        self._node.store.set_status(NODES, "", NAME, {"status": status})

    async def _follow(self, group: asyncio.TaskGroup) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            changed, self._changed = self._changed, set()
            for key in sorted(changed):
                try:
                    self._look(key, group)
                except Exception:  # what one pod has wrong must not stop the others
                    log.exception("%s %s/%s is not looked after", *key)

    def _look(self, key: Key, group: asyncio.TaskGroup) -> None:
        if key.plural == CLAIMS.plural:
            if self._node.store.find(CLAIMS, key.namespace, key.name) is None:
                self._deleted_claims.add(key)
                group.create_task(self._deleted_claims.remove())
            return
        if key.plural != PODS.plural:
            self._refresh_volumes(key)
            return
        pod = self._node.store.find(PODS, key.namespace, key.name)
        runner = self._runners.get(key)
        if runner is None:
            if pod is not None:
                self._take(key, pod, group)
        elif pod is None or pod["metadata"]["uid"] != runner.uid:
            runner.stop(0.0)  # the pod that has its name now runs once it has ended
        else:
            if "deletionTimestamp" in pod["metadata"]:
                runner.stop(grace_of(pod))
            runner.changed(pod)

    def _take(self, key: Key, pod: Object, group: asyncio.TaskGroup) -> None:
        """Run a pod, if there is room for it."""
        uid = pod["metadata"]["uid"]
        if "deletionTimestamp" in pod["metadata"]:
            self._let_go(key, uid)
            return
        if self._closing:
            return
        problem = self._node.machine.give(uid, requests(pod))
        if not problem:
            try:
                address = self._node.addresses.of(key.namespace, key.name)
                self._node.write_hosts()
            except (NoAddressError, OSError) as error:
                self._node.machine.take_back(uid)
                problem = str(error)
        if problem:
            patch = pod_status.unschedulable(pod, f"0/1 nodes are available: {problem}", now())
            self._node.store.set_status(PODS, key.namespace, key.name, patch)
            return
        try:
            runner = self._bind(key, address)
        except Exception:
            self._node.machine.take_back(uid)
            raise
        self._runners[key] = runner
        self._tasks[key] = group.create_task(self._run(key, runner), name=f"pod {key.name}")

    def _bind(self, key: Key, address: str) -> PodRunner:
        spec = {"spec": {"nodeName": NAME}}
        bound = self._node.store.merge(PODS, key.namespace, key.name, spec)
        return PodRunner(bound, self._node, address=address)

    async def _run(self, key: Key, runner: PodRunner) -> None:
        """A pod's life: once it is gone, others can have what it had."""
        try:
            await runner.run()
        except Exception as error:  # what one pod has wrong must not stop the others
            log.exception("Pod %s/%s cannot be run", key.namespace, key.name)
            self._node.record(runner.pod, reason="Failed", note=f"it cannot be run: {error!r}")
        self._node.machine.take_back(runner.uid)
        self._retry()
        await runner.stopped.wait()
        await asyncio.to_thread(runner.volumes.remove)
        del self._runners[key], self._tasks[key]
        if not runner.pod["spec"].get("hostname"):  # else another one will have its name
            self._node.addresses.free(key.namespace, key.name)
        self._let_go(key, runner.uid)
        self._retry()
        await self._deleted_claims.remove()

    def _let_go(self, key: Key, uid: str) -> None:
        """The pod has ended: its object goes if it was deleted."""
        pod = self._node.store.find(PODS, key.namespace, key.name)
        metadata = pod["metadata"] if pod is not None else {}
        if metadata.get("uid") == uid and "deletionTimestamp" in metadata:
            self._node.store.delete(PODS, key.namespace, key.name, uid=uid, grace=0)

    def _retry(self) -> None:
        """There may be room now, or a name that was taken."""
        for pod in self._node.store.listed(PODS):
            key = Key(PODS.plural, pod["metadata"]["namespace"], pod["metadata"]["name"])
            if key not in self._runners:
                self.notify(key)

    def _has_claim(self, key: Key) -> bool:
        """Whether a claim is there, or a pod that is not gone has what it held."""
        return self._node.store.find(CLAIMS, key.namespace, key.name) is not None or any(
            at.namespace == key.namespace and key.name in runner.volumes.claims()
            for at, runner in self._runners.items()
        )

    def _refresh_volumes(self, key: Key) -> None:
        content = _CONTENT[key.plural], key.name
        for at, runner in self._runners.items():
            if at.namespace == key.namespace and content in runner.volumes.names():
                runner.refresh()

    async def _refresh(self) -> None:
        """Renew tokens in time, and look at pods that wait.

        The loop's clock stands still while the machine sleeps; a token's time does not.
        """
        refreshed = time.time()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if not 0 <= time.time() - refreshed < REFRESH_SECONDS:
                refreshed = time.time()
                for runner in self._runners.values():
                    runner.refresh()
                self._retry()

    async def _watch_memory(self) -> None:
        while True:
            await asyncio.sleep(MEMORY_SECONDS)
            every = {
                container_id(runner.uid, container.spec["name"]): container
                for runner in self._runners.values()
                for container in runner.containers
            }
            limits = {name: memory_limit(container.spec) for name, container in every.items()}
            limited = {name: limit for name, limit in limits.items() if limit is not None}
            above = await asyncio.to_thread(above_limit, limited) if limited else {}
            for name, used in above.items():
                log.warning("Container %s uses %d bytes of %d", name, used, limited[name])
                every[name].kill(for_memory=True)
