"""Watches of nodes and of all objects of jobs: they fill the store, and name the jobs to plan."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from rollcall_operator.api import labels
from rollcall_operator.control import job_store
from rollcall_operator.control.backoff import WATCHING
from rollcall_operator.control.job_store import JobStore, Kept
from rollcall_operator.control.own_writes import OwnWrites
from rollcall_operator.kube.client import KubeClient, Object
from rollcall_operator.kube.resources import NODES, RL_JOBS, ROLLOUT_POOLS, Resource
from rollcall_operator.kube.watch import Watch
from rollcall_operator.plan.model import JobKey

log = logging.getLogger(__name__)

SECOND_LOOK = 0.5
"""Seconds after which a job is reconciled for an event that only kopf has reported."""

NodeSeen = Callable[[Object, bool], None]
"""Takes a node and whether it is gone."""


class ObjectWatches:
    """`enqueue(job, delay)` reconciles a job in so many seconds; `seen` counts events by the
    plural of their kind.

    A job is reconciled for what planning can tell apart, and not for what the operator has just
    written itself. Nodes are watched only with `node_seen`.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        store: JobStore,
        namespaces: tuple[str, ...],
        enqueue: Callable[[JobKey, float], None],
        seen: Callable[[str], None],
        node_seen: NodeSeen | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._enqueue = store, enqueue
        self.writes = OwnWrites(
            keep_answer=self.keep_answer,
            lives=store.lives,
            changed_by_others=lambda job: enqueue(job, 0.0),
            clock=clock,
        )
        """The operator's own writes: the store has them before these watches report them."""
        self._seen, self._node_seen = seen, node_seen
        self._of_kinds: dict[tuple[str, str | None], Watch[Kept]] = {
            (resource.plural, namespace): self._of_jobs(client, resource, namespace)
            for resource in job_store.KINDS
            for namespace in namespaces or (None,)
        }
        self._watches: list[Watch[Any]] = list(self._of_kinds.values())
        if node_seen is not None:
            self._watches.append(self._of_nodes(client, node_seen))

    async def run(self) -> None:
        """Follow all kinds of objects until cancelled. What a watch raises ends all of them."""
        async with asyncio.TaskGroup() as group:
            for watch in self._watches:
                group.create_task(watch.run())

    async def listed(self) -> None:
        """Wait until the store has all that exists."""
        for watch in self._watches:
            await watch.listed.wait()

    async def catch_up(self) -> None:
        """Wait until the store has all that had happened before this call."""
        await asyncio.gather(*(watch.catch_up() for watch in self._watches))
        log.info("The watches have reported all that the former leader wrote")

    def _watch(self, plural: str, namespace: str) -> Watch[Kept]:
        return self._of_kinds.get((plural, None)) or self._of_kinds[plural, namespace]

    def keep_answer(self, resource: Resource, found: Object) -> None:
        """The API server has answered a request with this object: no job is reconciled for it."""
        watch = self._watch(resource.plural, found["metadata"]["namespace"])
        if (difference := watch.keep_answer(found)) is not None:
            self._store.change(*difference)

    def reported(self, job: JobKey, plural: str, name: str, version: str) -> None:
        """Another watch has reported an object of this resourceVersion. Unless the operator has
        written it itself, the job is reconciled once these watches report it, and after SECOND_LOOK
        at the latest.
        """
        if self._watch(plural, job[0]).is_behind(job[0], name, int(version)):
            self._enqueue(job, SECOND_LOOK)

    def lost_for(self) -> float:
        """Seconds since one of the watches began to fail; 0 while all go on."""
        failing = [w.failing_since for w in self._watches if w.failing_since is not None]
        return time.monotonic() - min(failing) if failing else 0.0

    def _of_jobs(
        self, client: KubeClient, resource: Resource, namespace: str | None
    ) -> Watch[Kept]:
        def changed(before: Kept | None, now: Kept | None) -> None:
            self._seen(resource.plural)
            self._store.change(before, now)
            for job in {each.job for each in (before, now) if each is not None}:
                if job is not None and is_news(job, before, now, self.writes):
                    self._enqueue(job, 0.0)

        return Watch(
            client,
            resource,
            namespace=namespace,
            labels="" if resource in {RL_JOBS, ROLLOUT_POOLS} else labels.JOB,
            reduce=lambda found: job_store.keep(resource, found),
            changed=changed,
            delay=WATCHING.delay,
        )

    def _of_nodes(self, client: KubeClient, node_seen: NodeSeen) -> Watch[Object]:
        def changed(before: Object | None, now: Object | None) -> None:
            self._seen(NODES.plural)
            node = now or before
            if node is not None:
                node_seen(node, now is None)

        return Watch(client, NODES, reduce=outline, changed=changed, delay=WATCHING.delay)


def is_news(job: JobKey, before: Kept | None, now: Kept | None, writes: OwnWrites) -> bool:
    """Whether a job is to be planned for this change now: if planning can tell the difference and
    the operator has not made it, or if the job's planning waits for the store.
    """
    if now is None or writes.is_waited_for(job):
        return True
    return now.differs_from(before) and not writes.may_be_own(job, now.plural, now.version)


def outline(node: Object) -> Object:
    """What is read of a node; its list of images is long."""
    return {
        "metadata": {"name": node["metadata"]["name"]},
        "spec": {"taints": (node.get("spec") or {}).get("taints") or []},
        "status": {"conditions": (node.get("status") or {}).get("conditions") or []},
    }
