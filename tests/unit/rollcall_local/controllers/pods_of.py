"""A Deployment or StatefulSet, and its pods as a store and a kubelet would have them."""

import copy
import itertools
from collections.abc import Callable
from typing import Any

from rollcall_local.controllers.changes import Changes, is_over, is_ready, is_terminating

Object = dict[str, Any]
Plan = Callable[[Object, list[Object]], Changes]


def owner(kind: str, name: str, replicas: int, **spec: Any) -> Object:
    """A Deployment or StatefulSet, as the API server returns it."""
    template = {
        "metadata": {"labels": {"app": name}},
        "spec": {"containers": [{"name": "worker", "image": "one"}]},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "generation": 1},
        "spec": {"replicas": replicas, "template": template, **spec},
    }


class Cluster:
    """Carries out what `plan` says for one owner. Its pods stay the same objects."""

    def __init__(self, plan: Plan, owner: Object) -> None:
        self.plan, self.owner = plan, owner
        self.pods: dict[str, Object] = {}
        self._seconds = itertools.count()

    def step(self) -> Changes:
        """Plan once, and do it."""
        changes = self.plan(copy.deepcopy(self.owner), copy.deepcopy(list(self.pods.values())))
        for pod in changes.create:
            name = pod["metadata"]["name"]
            assert name not in self.pods, "a pod is made that is there already"
            moment = next(self._seconds)
            pod["metadata"]["uid"] = f"uid-{moment}"
            pod["metadata"]["creationTimestamp"] = f"2026-01-01T{moment // 60:02}:{moment % 60:02}Z"
            self.pods[name] = pod
        for pod in changes.delete:
            assert not is_terminating(self.pods[pod["metadata"]["name"]]), "deleted twice"
            self.pods[pod["metadata"]["name"]]["metadata"]["deletionTimestamp"] = "soon"
        return changes

    def settle(self, *, steps: int = 60) -> None:
        """Plan until nothing is left to do, while pods begin and end at once."""
        for _ in range(steps):
            changes = self.step()
            busy = bool(changes.create or changes.delete)
            for name, pod in list(self.pods.items()):
                if is_terminating(pod):
                    self.end(name)
                elif not is_ready(pod) and not is_over(pod):
                    self.ready(name)
                else:
                    continue
                busy = True
            if not busy:
                return
        raise AssertionError(f"still busy after {steps} steps")

    def ready(self, name: str, *, is_it: bool = True) -> None:
        """The pod runs, and its probe says so, or not."""
        condition = {"type": "Ready", "status": str(is_it)}
        self.pods[name]["spec"]["nodeName"] = "node"
        self.pods[name]["status"] = {"phase": "Running", "conditions": [condition]}

    def fail(self, name: str) -> None:
        """All containers of the pod have ended for good."""
        self.pods[name]["status"] = {"phase": "Failed", "conditions": []}

    def end(self, name: str) -> None:
        """The pod's processes have ended, and it goes."""
        del self.pods[name]

    def change_template(self, image: str) -> None:
        """Write another template."""
        self.owner["spec"]["template"]["spec"]["containers"][0]["image"] = image
        self.owner["metadata"]["generation"] += 1

    def active(self, image: str = "") -> list[Object]:
        """Pods that nobody has deleted and that can run, of one template if it is named."""
        return [
            pod
            for pod in self.pods.values()
            if not is_terminating(pod)
            and not is_over(pod)
            and image in {"", pod["spec"]["containers"][0]["image"]}
        ]

    def ready_pods(self) -> int:
        """How many serve."""
        return sum(map(is_ready, self.active()))


def names(pods: list[Object]) -> list[str]:
    """Names of pods, in their order."""
    return [pod["metadata"]["name"] for pod in pods]
