"""A pod's status, from what its containers are at; pure.

https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]


@dataclass(slots=True)
class ContainerState:
    """One container now.

    Attributes:
        state: waiting, running or terminated, as in the API.
        last: how the run before has ended, if there was one.
        is_over: it runs no more.
    """

    name: str
    image: str
    state: Object = field(default_factory=lambda: {"waiting": {"reason": "ContainerCreating"}})
    last: Object = field(default_factory=dict)
    restarts: int = 0
    started: bool = False
    ready: bool = False
    is_over: bool = False

    def waits(self, reason: str, message: str = "") -> None:
        """It does not run, and will."""
        self._keep_end()
        self.state = {"waiting": {"reason": reason} | ({"message": message} if message else {})}

    def runs(self, since: str) -> None:
        """Its process has started."""
        self._keep_end()
        self.restarts += bool(self.last)
        self.state = {"running": {"startedAt": since}}

    def ended(self, how: Object) -> None:
        """Its process has ended, as `terminated` in the API says."""
        self.started = self.ready = False
        self.state = {"terminated": how}

    def _keep_end(self) -> None:
        if "terminated" in self.state:
            self.last = self.state

    def as_status(self) -> Object:
        """The entry of containerStatuses."""
        return {
            "name": self.name,
            "image": self.image,
            "imageID": "",
            "ready": self.ready,
            "started": self.started,
            "restartCount": self.restarts,
            "state": self.state,
            "lastState": self.last,
        }

    @property
    def exit_code(self) -> int | None:
        """Of its end, if it has ended for good."""
        ended = self.state.get("terminated")
        return ended["exitCode"] if ended and self.is_over else None


def phase(containers: Sequence[ContainerState]) -> str:
    """Pending, Running, Succeeded or Failed."""
    if all(c.is_over for c in containers):
        return "Succeeded" if all(c.exit_code == 0 for c in containers) else "Failed"
    has_begun = all(c.is_over or c.last or "waiting" not in c.state for c in containers)
    return "Running" if has_begun else "Pending"


def patch(
    pod: Object,
    *,
    address: str,
    inits: Sequence[ContainerState],
    containers: Sequence[ContainerState],
    mounted: bool,
    timestamp: str,
) -> Object:
    """The merge patch of the pod's status; conditions of others, such as gates, stay."""
    ready = all(c.ready for c in containers)
    statuses = {
        "PodScheduled": True,
        "PodReadyToStartContainers": mounted,
        "Initialized": all(c.exit_code == 0 for c in inits),
        "ContainersReady": ready,
        "Ready": ready and gates_are_open(pod),
    }
    conditions = [{"type": kind, "status": str(holds)} for kind, holds in statuses.items()]
    status: Object = {
        "phase": phase(containers),
        "conditions": _with_others(pod, conditions, timestamp),
        "containerStatuses": [c.as_status() for c in containers],
        "startTime": (pod.get("status") or {}).get("startTime", timestamp),
    }
    if inits:
        status["initContainerStatuses"] = [c.as_status() for c in inits]
    if mounted:
        status |= {"podIP": address, "podIPs": [{"ip": address}], "hostIP": "127.0.0.1"}
    return _patch(pod, status)


def unschedulable(pod: Object, message: str, timestamp: str) -> Object:
    """The merge patch for a pod that there is no room for."""
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
    }
    conditions = _with_others(pod, [condition], timestamp)
    return _patch(pod, {"phase": "Pending", "conditions": conditions})


def gates_are_open(pod: Object) -> bool:
    """Whether each readiness gate has its condition."""
    statuses = {kind: condition["status"] for kind, condition in _conditions(pod).items()}
    gates = pod["spec"].get("readinessGates") or ()
    return all(statuses.get(gate["conditionType"]) == "True" for gate in gates)


def _patch(pod: Object, status: Object) -> Object:
    return {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}


def _conditions(pod: Object) -> dict[str, Object]:
    return {c["type"]: c for c in (pod.get("status") or {}).get("conditions") or ()}


def _with_others(pod: Object, own: list[Object], timestamp: str) -> list[Object]:
    """The conditions of others, and one's own: their time is that of their last change."""
    before = _conditions(pod)
    for condition in own:
        was = before.pop(condition["type"], {})
        same = was.get("status") == condition["status"]
        condition["lastTransitionTime"] = was["lastTransitionTime"] if same else timestamp
    return [*own, *before.values()]
