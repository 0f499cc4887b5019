"""How many ranks a trainer has: its pods, and the processes in each."""

import re

from rollcall_operator.api import labels
from rollcall_operator.api.quantity import is_quantity, parse_quantity
from rollcall_operator.api.training import TrainerSpec
from rollcall_operator.plan.children.pod_template import worker_container
from rollcall_operator.plan.model import Manifest

_ACCELERATOR = re.compile(r"nvidia\.com/(gpu|gpu\.shared|mig-.+)|amd\.com/gpu|huawei\.com/Ascend.+")
"""Extended resources of the device plugins whose devices torch drives as cuda or npu."""


def accelerators(template: Manifest, role: str) -> dict[str, int]:
    """How many accelerators the worker's container asks for, by resource name."""
    container = worker_container(template, role) or {}
    resources = container.get("resources")
    found: dict[str, int] = {}
    for kind in ("requests", "limits"):  # of an extended resource the limit is the request, too
        amounts = resources.get(kind) if isinstance(resources, dict) else None
        for name, amount in (amounts if isinstance(amounts, dict) else {}).items():
            if _ACCELERATOR.fullmatch(str(name)) and is_quantity(str(amount)):
                found[name] = int(parse_quantity(str(amount)))
    return {name: number for name, number in sorted(found.items()) if number > 0}


def claims(template: Manifest, role: str) -> list[str]:
    """The names of the claims of the worker's container, whose devices no template counts.

    https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
    """
    resources = (worker_container(template, role) or {}).get("resources")
    given = resources.get("claims") if isinstance(resources, dict) else None
    listed = given if isinstance(given, list) else []
    return [str(claim.get("name")) for claim in listed if isinstance(claim, dict)]


def processes_per_pod(trainer: TrainerSpec) -> int:
    """Ranks in each trainer pod. What an External trainer's program starts there is its own matter:
    one of its processes calls rollcall.Trainer().
    """
    if trainer.external:
        return 1
    if trainer.processes_per_pod is not None:
        return trainer.processes_per_pod
    if trainer.device == "cpu":
        return 1
    return max(1, sum(accelerators(trainer.template, labels.TRAINER).values()))
