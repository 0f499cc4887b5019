"""Watches of nodes, and of the pods and children of jobs: an event names the job it is about."""

import asyncio
from collections.abc import Callable
from typing import Any

from rollcall_operator.api import labels
from rollcall_operator.control.backoff import WATCHING
from rollcall_operator.control.job_state import Key
from rollcall_operator.kube.client import KubeClient, Object
from rollcall_operator.kube.resources import (
    DEPLOYMENTS,
    NETWORK_POLICIES,
    NODES,
    PODS,
    STATEFUL_SETS,
    Resource,
)
from rollcall_operator.kube.watch import Watch

LABELLED = (PODS, DEPLOYMENTS, STATEFUL_SETS, NETWORK_POLICIES)

NodeSeen = Callable[[Object, bool], None]
"""Takes a node and whether it is gone."""


class ObjectWatches:
    """`enqueue` reconciles a job; `seen` counts events by the plural of their kind.

    Nodes are watched only with `node_seen`.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        namespaces: tuple[str, ...],
        enqueue: Callable[[Key], None],
        seen: Callable[[str], None],
        node_seen: NodeSeen | None,
    ) -> None:
        self._enqueue, self._seen, self._node_seen = enqueue, seen, node_seen
        self._watches: list[Watch[Any]] = [
            self._of_jobs(client, resource, namespace)
            for resource in LABELLED
            for namespace in namespaces or (None,)
        ]
        if node_seen is not None:
            self._watches.append(self._of_nodes(client, node_seen))

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for watch in self._watches:
                group.create_task(watch.run())

    def _of_jobs(
        self, client: KubeClient, resource: Resource, namespace: str | None
    ) -> Watch[Key | None]:
        def changed(before: Key | None, now: Key | None) -> None:
            self._seen(resource.plural)
            for key in {before, now} - {None}:
                if key is not None:
                    self._enqueue(key)

        return Watch(
            client,
            resource,
            namespace=namespace,
            labels=labels.JOB,
            reduce=labelled_job,
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


def labelled_job(found: Object) -> Key | None:
    """Namespace and name of the job that a pod or child belongs to, by its label."""
    metadata = found["metadata"]
    job = (metadata.get("labels") or {}).get(labels.JOB)
    return (metadata["namespace"], job) if job else None


def outline(node: Object) -> Object:
    """What is read of a node; its list of images is long."""
    return {
        "metadata": {"name": node["metadata"]["name"]},
        "spec": {"taints": (node.get("spec") or {}).get("taints") or []},
        "status": {"conditions": (node.get("status") or {}).get("conditions") or []},
    }
