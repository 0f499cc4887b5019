"""Pods of a Deployment, made without the ReplicaSets that a cluster has in between.

https://kubernetes.io/docs/concepts/workloads/controllers/deployment/
"""

import math
import secrets
from collections.abc import Callable
from typing import Any

from rollcall_local.controllers.changes import (
    Changes,
    Object,
    controlled_by,
    is_over,
    is_ready,
    is_terminating,
    pod_from,
    template_hash,
)

HASH = "pod-template-hash"
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_USUAL_SHARE = "25%"


def plan(deployment: Object, pods: list[Object]) -> Changes:
    """What brings the pods to the Deployment's number and template."""
    spec = deployment["spec"]
    wanted = int(spec.get("replicas", 1))
    current = template_hash(spec["template"])
    living = [pod for pod in controlled_by(deployment, pods) if not is_over(pod)]
    active = [pod for pod in living if not is_terminating(pod)]
    new = [pod for pod in active if _hash(pod) == current]
    old = [pod for pod in active if _hash(pod) != current]
    if _recreates(spec):
        waits = any(_hash(pod) != current for pod in living)  # for all old ones, to their end
        missing, of_old = 0 if waits else wanted - len(new), old
    else:
        surge, unavailable = _limits(spec, wanted)
        missing = min(wanted - len(new), wanted + surge - len(active))
        of_old = _of_old(old, new, least_ready=max(0, wanted - unavailable))
    surplus = sorted(new, key=_keep_longer)[: max(0, len(new) - wanted)]
    status = {
        "observedGeneration": deployment["metadata"]["generation"],
        "replicas": len(active),
        "updatedReplicas": len(new),
        "readyReplicas": sum(map(is_ready, active)),
        "availableReplicas": sum(map(is_ready, active)),
    }
    create = [_pod(deployment, current) for _ in range(missing)]
    return Changes(create=create, delete=surplus + of_old, status=status)


def _hash(pod: Object) -> str:
    return str(pod["metadata"]["labels"].get(HASH))


def _recreates(spec: Object) -> bool:
    return (spec.get("strategy") or {}).get("type") == "Recreate"


def _of_old(old: list[Object], new: list[Object], *, least_ready: int) -> list[Object]:
    """Old pods that may go: those that are not ready first, as they serve no request.

    Of these, too, some stay until there is a new one that is ready: they may become ready before.
    """
    in_order = sorted(old, key=_keep_longer)
    idle = [pod for pod in in_order if not is_ready(pod)]
    serving = [pod for pod in in_order if is_ready(pod)]
    enough = sum(map(is_ready, new)) - least_ready
    return idle[: max(0, len(old) + enough)] + serving[: max(0, len(serving) + enough)]


def _pod(deployment: Object, current: str) -> Object:
    name = f"{deployment['metadata']['name']}-{current}-{secrets.token_hex(3)[:5]}"
    return pod_from(deployment, name=name, labels={HASH: current})


def _keep_longer(pod: Object) -> tuple[Any, ...]:
    """The first ones go first when there are too many."""
    metadata = pod["metadata"]
    is_bound = bool(pod["spec"].get("nodeName"))
    has_begun = (pod.get("status") or {}).get("phase", "Pending") != "Pending"
    newest_first = [-ord(letter) for letter in metadata["creationTimestamp"]]
    return is_bound, has_begun, is_ready(pod), _cost(pod), newest_first, metadata["name"]


def _cost(pod: Object) -> int:
    """A text that is no number counts as none."""
    text = (pod["metadata"].get("annotations") or {}).get(DELETION_COST, "")
    try:
        return int(text)
    except ValueError:
        return 0


def _limits(spec: Object, wanted: int) -> tuple[int, int]:
    """How many pods an update may have above the number, and below it."""
    rolling = (spec.get("strategy") or {}).get("rollingUpdate") or {}
    surge = _share(rolling.get("maxSurge", _USUAL_SHARE), wanted, math.ceil)
    unavailable = _share(rolling.get("maxUnavailable", _USUAL_SHARE), wanted, math.floor)
    return surge, unavailable if surge or unavailable else 1


def _share(value: int | str, wanted: int, rounded: Callable[[float], int]) -> int:
    if isinstance(value, int):
        return value
    return rounded(wanted * int(value.removesuffix("%")) / 100)
