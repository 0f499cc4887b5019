"""Nodes in trouble, as watch events report them, and which jobs to reconcile for them."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from rollcall_operator.kube.client import Object
from rollcall_operator.plan.membership.nodes import node_facts
from rollcall_operator.plan.model import JobKey, NodeFacts

log = logging.getLogger(__name__)


class NodeWatch:
    """Keeps only what is wrong with a node. Each node is updated every few minutes, and nearly
    always nothing of interest changes: then no job is reconciled.
    """

    def __init__(self, *, taints: Collection[str], enqueue: Callable[[JobKey], None]) -> None:
        """`taints`: keys of those that announce a node's end. `enqueue` reconciles a job."""
        self._taints = frozenset(taints)
        self._enqueue = enqueue
        self._troubled: dict[str, NodeFacts] = {}
        self._nodes_of: dict[JobKey, frozenset[str]] = {}

    def seen(self, node: Object, gone: bool) -> None:
        """A watch event of a node; a deleted node has no pods to care for."""
        name = node["metadata"]["name"]
        facts = None if gone else node_facts(node, self._taints)
        if facts == self._troubled.get(name):
            return
        if facts is None:
            del self._troubled[name]
            log.info("Node %s has recovered or was deleted", name)
        else:
            self._troubled[name] = facts
            keys = ", ".join(taint.key for taint in facts.preempted) or "none"
            state = "does not respond" if facts.lost else "responds"
            log.warning("Node %s %s; taints that announce its termination: %s", name, state, keys)
        for key, nodes in self._nodes_of.items():
            if name in nodes:
                self._enqueue(key)

    def subscribe(self, key: JobKey, nodes: Iterable[str]) -> None:
        """From now on reconcile the job when one of `nodes`, and no other, changes its state."""
        self._nodes_of[key] = frozenset(name for name in nodes if name)

    def troubled(self, nodes: Iterable[str]) -> Mapping[str, NodeFacts]:
        """Those of `nodes` that are in trouble, by name."""
        return {name: self._troubled[name] for name in nodes if name in self._troubled}

    def forget(self, key: JobKey) -> None:
        """The job is gone."""
        self._nodes_of.pop(key, None)
