"""Rollout replicas of verl for pods that come: as many as Ray has nodes with the resource."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from typing import TYPE_CHECKING, Any

import ray

if TYPE_CHECKING:
    from collections.abc import Sequence

TRAINER, ROLLOUT = "rollcall_trainer", "rollcall_rollout"
"""What a pod gives Ray by its kind: `ray start --resources='{"rollcall_rollout": 1}'`."""

MOST_FAILURES = 3  # in a row; then none is made until a pod comes or goes

log = logging.getLogger(__name__)


class NewReplicas:
    """Makes replicas as the first ones are, each in a thread, while training goes on."""

    def __init__(self, first: Sequence[Any]) -> None:
        self._pattern = first[0] if first else None
        self._next_rank = 1 + max((replica.replica_rank for replica in first), default=-1)
        self._starting, self._failures = 0, 0
        self._started: queue.SimpleQueue[Any] = queue.SimpleQueue()  # replicas, or None
        self._nodes: set[str] = set()

    def take(self) -> list[Any]:
        """Those whose servers run by now; begins to make one for each pod that has none."""
        ready = self._take_started()
        if self._pattern is None:
            return ready
        nodes = nodes_with(ROLLOUT)
        if nodes != self._nodes:
            self._nodes, self._failures = nodes, 0
        if self._failures < MOST_FAILURES:
            # A pod that is lost has its replica until Ray knows.
            for _ in range(_free(nodes, self._pattern.gpus_per_replica_node) - self._starting):
                self._begin()
        return ready

    def give_back(self, replica: Any) -> None:
        """End what lives of a replica that is lost, so that its pod, or the next one, is free.

        Ray keeps its placement group, and moves it to a pod that comes.
        """
        if not nodes_with(ROLLOUT):
            return
        for actor in (*replica.workers, *replica.servers):
            ray.kill(actor)
        pool = replica.resource_pool
        for group in (pool.pgs or ()) if pool is not None else ():
            ray.util.remove_placement_group(group)

    def _take_started(self) -> list[Any]:
        ready = []
        while not self._started.empty():
            self._starting -= 1
            replica = self._started.get()
            self._failures = 0 if replica is not None else self._failures + 1
            if replica is not None:
                ready.append(replica)
        return ready

    def _begin(self) -> None:
        pattern, rank = self._pattern, self._next_rank
        assert pattern is not None  # noqa: S101 - `take` looks
        self._next_rank, self._starting = rank + 1, self._starting + 1
        made = type(pattern)(
            replica_rank=rank,
            config=pattern.config,
            model_config=pattern.model_config,
            gpus_per_node=pattern.gpus_per_node,
        )
        log.info("replica %d is made for a rollout pod that has come", rank)
        threading.Thread(target=self._start, args=[made], name="replica", daemon=True).start()

    def _start(self, replica: Any) -> None:
        try:
            asyncio.run(replica.init_standalone())
        except Exception:
            log.exception("replica %d could not be made", replica.replica_rank)
            self._started.put(None)
            return
        self._started.put(replica)


def nodes_with(resource: str) -> set[str]:
    """The ids of Ray's nodes that live and have it."""
    return {
        node["NodeID"] for node in ray.nodes() if node["Alive"] and resource in node["Resources"]
    }


def _free(nodes: set[str], devices: int) -> int:
    """How many of the nodes have so many devices to give."""
    # What verl looks at before it makes a pool (ResourcePoolManager).
    available = ray._private.state.available_resources_per_node()  # noqa: SLF001
    return sum(
        max(available.get(node, {}).get(name, 0) for name in ("GPU", "NPU")) >= devices
        for node in nodes
    )
