"""What this machine has, and what pods have asked for of it."""

import logging
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from rollcall_operator.api.quantity import parse_quantity

log = logging.getLogger(__name__)

Object = dict[str, Any]

CPU, MEMORY, GPU = "cpu", "memory", "nvidia.com/gpu"
COUNTED = (CPU, MEMORY, GPU)
IGNORED = ("ephemeral-storage",)
"""Resources that are not counted: a request of them is met."""
_LISTING_SECONDS = 20


def requests(pod: Object) -> dict[str, Decimal]:
    """What a pod asks for: the larger one of its containers' sum and its largest init container."""
    spec = pod["spec"]
    found = {}
    for name in COUNTED:
        together = sum((_request(c, name) for c in spec["containers"]), Decimal(0))
        first = max((_request(c, name) for c in spec.get("initContainers") or ()), default=0)
        found[name] = max(together, Decimal(first))
    return found


def _request(container: Object, name: str) -> Decimal:
    resources = container.get("resources") or {}
    for kind in ("requests", "limits"):  # a limit alone is a request, too
        if name in (resources.get(kind) or {}):
            return parse_quantity(str(resources[kind][name]))
    return Decimal(0)


def memory_limit(container: Object) -> int | None:
    """In bytes; None: no limit."""
    limit = ((container.get("resources") or {}).get("limits") or {}).get(MEMORY)
    return None if limit is None else int(parse_quantity(str(limit)))


@dataclass(slots=True)
class Machine:
    """Capacities, and the share that each pod has been given, by the pod's uid.

    Attributes:
        capacity: by resource.
        gpus: how CUDA_VISIBLE_DEVICES names each.
    """

    capacity: Mapping[str, Decimal]
    gpus: tuple[str, ...] = ()
    _given: dict[str, dict[str, Decimal]] = field(default_factory=dict)
    _gpus_of: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def give(self, uid: str, wanted: Mapping[str, Decimal]) -> str:
        """Take a pod's share; returns why there is none now, else nothing."""
        for name, amount in wanted.items():
            used = sum((given.get(name, Decimal(0)) for given in self._given.values()), Decimal(0))
            free = self.capacity.get(name, Decimal(0)) - used
            if amount > free:
                return f"Insufficient {name}: {amount:f} is asked for, {free:f} is free"
        self._given[uid] = dict(wanted)
        taken = {gpu for gpus in self._gpus_of.values() for gpu in gpus}
        free_gpus = [gpu for gpu in self.gpus if gpu not in taken]
        self._gpus_of[uid] = tuple(free_gpus[: int(wanted.get(GPU, 0))])
        return ""

    def gpus_of(self, uid: str) -> tuple[str, ...]:
        """Those that a pod has."""
        return self._gpus_of.get(uid, ())

    def take_back(self, uid: str) -> None:
        """The pod is gone."""
        self._given.pop(uid, None)
        self._gpus_of.pop(uid, None)


def this_machine() -> Machine:
    """Processors, memory and NVIDIA GPUs."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    gpus = _nvidia_gpus()
    return Machine(
        {CPU: Decimal(os.cpu_count() or 1), MEMORY: Decimal(memory), GPU: Decimal(len(gpus))},
        gpus,
    )


def _nvidia_gpus() -> tuple[str, ...]:
    """Those that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(name for name in visible.split(",") if name not in {"", "-1"})
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    try:
        done = subprocess.run(
            [program, "--query-gpu=uuid", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=_LISTING_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("No GPU is known, as nvidia-smi fails: %s", error)
        return ()
    return tuple(line.strip() for line in done.stdout.splitlines() if line.strip())
