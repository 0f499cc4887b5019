"""Nodes in trouble, as a watch tells of them, and which jobs have pods there."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from rollcall_operator.control.job_state import Key
from rollcall_operator.kube.client import Object
from rollcall_operator.plan.membership.nodes import node_facts
from rollcall_operator.plan.model import NodeFacts

log = logging.getLogger(__name__)


class NodeWatch:
    """Keeps only what is wrong with a node. Nodes tell of themselves every few minutes, and nearly
    always nothing new: then nobody is woken.
    """

    def __init__(self, *, taints: Collection[str], wake: Callable[[Key], None]) -> None:
        """`taints`: keys of those that tell of a node's end. `wake` has a job reconciled."""
        self._taints = frozenset(taints)
        self._wake = wake
        self._troubled: dict[str, NodeFacts] = {}
        self._nodes_of: dict[Key, frozenset[str]] = {}

    def seen(self, node: Object, gone: bool) -> None:
        """A watch event of a node; a node that is gone has no pods to care for."""
        name = node["metadata"]["name"]
        facts = None if gone else node_facts(node, self._taints)
        if facts == self._troubled.get(name):
            return
        if facts is None:
            del self._troubled[name]
            log.info("Node %s is fine again, or gone", name)
        else:
            self._troubled[name] = facts
            keys = ", ".join(taint.key for taint in facts.preempted)
            log.info("Node %s: taints %s, lost %s", name, keys or "none", facts.lost)
        for key, nodes in self._nodes_of.items():
            if name in nodes:
                self._wake(key)

    def troubled(self, key: Key, nodes: Iterable[str]) -> Mapping[str, NodeFacts]:
        """Those of `nodes` that are in trouble; from now on the job is woken for all of them."""
        self._nodes_of[key] = names = frozenset(name for name in nodes if name)
        return {name: self._troubled[name] for name in names if name in self._troubled}

    def forget(self, key: Key) -> None:
        """The job is gone."""
        self._nodes_of.pop(key, None)
